"""The real Kafka client against librdkafka's own mock cluster, in this process: channels, reading, settings, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from keyfold.errors import ConfigError
from keyfold.kafka.cluster import KafkaCluster
from keyfold.kafka.errors import KafkaUnavailable
from keyfold.kafka.reading import read_topic
from keyfold.kafka.settings import client_settings
from keyfold.restore.errors import RecordRefused, TargetMoved
from keyfold.restore.kafka_target import OWNED, KafkaChannel, KafkaTarget, compression_of
from keyfold.restore.rows import Row
from keyfold.restore.target import TargetTopic

FOREVER = float("inf")


@pytest.fixture
def mock() -> Producer:
    return Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def servers(mock: Producer) -> str:
    return ",".join(f"{b.host}:{b.port}" for b in mock.list_topics("t", timeout=60).brokers.values())


def target_of(servers: str, *, send_s: float = 10, **settings: str) -> KafkaTarget:
    cluster = KafkaCluster(client_settings(servers))
    topic = TargetTopic("t", "", "", 4, {"max.message.bytes": "100000", **settings})
    return KafkaTarget(cluster, topic, send_s=send_s, largest_bytes=1000)


def send(channel: KafkaChannel, rows: list[Row]) -> None:
    taken = 0
    while taken < len(rows):
        taken += channel.send(rows[taken:], FOREVER)


ROWS: list[Row] = [
    (0, 1_700_000_000_000, b"k", b"v", None),
    (1, -1, b"k", None, None),
    (2, 5, b"", b"", [("a", b"1"), ("a", None), ("", b""), ("ü", b"\xff")]),
    (3, 1_700_000_000_001, None, None, None),
]


def test_records_sent_through_a_channel_are_read_back_in_order(servers: str) -> None:
    target = target_of(servers)
    assert target.ends(1).end_offset == 0
    channel = target.channel(1, 0)
    send(channel, ROWS)
    channel.settle()
    assert channel.landed_offset == 4
    assert channel.close()
    found = list(target.records(1, 0, target.ends(1).end_offset))
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers) or None) for r in found] == ROWS


def test_a_channel_accepts_nothing_after_its_deadline(servers: str) -> None:
    channel = target_of(servers).channel(0, 0)
    assert channel.send(ROWS, 0.0) == 0
    assert channel.send(ROWS, FOREVER) == 4
    channel.settle()
    channel.close()


def test_a_foreign_record_stops_the_channel(mock: Producer, servers: str) -> None:
    mock.produce("t", b"foreign", partition=2)
    assert mock.flush(10) == 0
    channel = target_of(servers).channel(2, 0)
    send(channel, ROWS)
    with pytest.raises(TargetMoved, match="landed at offset 1, not at 0"):
        channel.settle()
    with pytest.raises(TargetMoved):
        channel.send(ROWS, FOREVER)
    assert channel.close()


def test_a_record_that_is_too_large_is_refused_with_its_offset(servers: str) -> None:
    channel = target_of(servers).channel(3, 0)
    with pytest.raises(RecordRefused, match="size too large") as caught:
        send(channel, [*ROWS, (4, 1, b"k", b"x" * 300_000, None)])
    assert caught.value.target_offset == 4
    channel.close()


def test_an_unavailable_broker_is_a_retriable_error() -> None:
    channel = target_of("127.0.0.1:9", send_s=0.3).channel(0, 0)
    send(channel, ROWS)
    with pytest.raises(KafkaUnavailable):
        channel.settle()
    channel.close()
    with KafkaCluster(client_settings("127.0.0.1:9"), timeout_s=0.3) as cluster, pytest.raises(KafkaUnavailable):
        cluster.ends("t", [0])


def test_reading_ends_at_the_given_offset(servers: str) -> None:
    target = target_of(servers)
    channel = target.channel(0, 0)
    send(channel, ROWS)
    channel.settle()
    settings = client_settings(servers)
    assert [r.offset for r in read_topic(settings, "t", 0, 1, 3)] == [1, 2]
    assert list(read_topic(settings, "t", 0, 2, 2)) == []


def test_settings_are_accepted_as_by_kafkas_own_tools(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=elsewhere:9092\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\nfetch.max.wait.ms=7\n"
        'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";\n'
    )
    assert client_settings(None, file)["bootstrap.servers"] == "elsewhere:9092"
    assert client_settings("a:1, b:2", file) == {
        "bootstrap.servers": "a:1, b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "fetch.wait.max.ms": "7",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing required key `bootstrap.servers`"),
        ("bootstrap.servers=a b", "is not host:port"),
        ("bootstrap.servers=a:1\nssl.truststore.location=x.jks", "it cannot read Java trust stores"),
        ("bootstrap.servers=a:1\nsasl.jaas.config=nonsense", "PlainLoginModule"),
        ("bootstrap.servers=a:1\nacks=1", "`acks`: cannot be set"),
    ],
)
def test_unusable_settings_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        client_settings(None, file, owned=OWNED)


def test_an_unknown_client_key_is_named_without_showing_a_secret() -> None:
    with pytest.raises(ConfigError, match=r"`ssl\.bogus`") as caught:
        KafkaCluster({**client_settings("a:1"), "sasl.password": "hushhush", "ssl.bogus": "hushhush"})
    assert "hushhush" not in str(caught.value)


def test_compression_defaults_to_the_topics_and_then_to_lz4() -> None:
    def topic(kept: str) -> TargetTopic:
        return TargetTopic("t", "", "", 1, {"compression.type": kept})

    assert compression_of(topic("zstd"), {"compression.type": "gzip"}) == "gzip"
    assert compression_of(topic("zstd"), {}) == "zstd"
    assert compression_of(topic("uncompressed"), {}) == "none"
    assert compression_of(topic("producer"), {}) == "lz4"
