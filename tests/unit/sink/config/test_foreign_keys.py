"""Configurations of other S3 sinks: translated keys, keys without effect, and refusals with their reasons."""

from __future__ import annotations

import re

import pytest

from keyfold.config.config_file import Resolved
from keyfold.config.option_table import option_table
from keyfold.config.options import Examined
from keyfold_sink.config.aliases import rewrite
from keyfold_sink.config.examine import ConfigFindings, examine
from keyfold_sink.config.foreign_keys import AIVEN, CONFLUENT, FOREIGN, Anyway, Never, Same
from keyfold_sink.config.options import SinkOptions
from tests.support.root import ROOT

# etc/kafka-connect-s3/quickstart-s3.properties of Confluent's connector, every key of it.
QUICK_START = {
    "name": "s3-sink",
    "connector.class": "io.confluent.connect.s3.S3SinkConnector",
    "tasks.max": "1",
    "topics": "s3_topic",
    "s3.region": "us-west-2",
    "s3.bucket.name": "confluent-kafka-connect-s3-testing",
    "s3.part.size": "5242880",
    "flush.size": "3",
    "storage.class": "io.confluent.connect.s3.storage.S3Storage",
    "format.class": "io.confluent.connect.s3.format.avro.AvroFormat",
    "partitioner.class": "io.confluent.connect.storage.partitioner.DefaultPartitioner",
    "schema.compatibility": "NONE",
}
BASE = {"name": "users", "bootstrap.servers": "h:1", "topics": "users", "s3.bucket.name": "log"}


def sink(values: dict[str, str]) -> ConfigFindings:
    return examine(values, {})


def parsed(**more: str) -> Examined[SinkOptions]:
    return SinkOptions.examine({**BASE, **{key.replace("__", "."): value for key, value in more.items()}})


def test_confluents_quick_start_needs_only_the_bootstrap_servers_added() -> None:
    findings = sink(QUICK_START)
    assert [mistake.key for mistake in findings.mistakes] == ["bootstrap.servers"]
    assert "worker" in (findings.mistakes[0].hint or "")
    findings = sink({**QUICK_START, "bootstrap.servers": "localhost:9092"})
    assert findings.mistakes == ()
    assert findings.options is not None
    assert (findings.options.flush_size, findings.options.tasks_max) == (3, 1)
    assert findings.options.group_id == "connect-s3-sink"
    without_effect = {note.key for note in findings.notes}
    assert without_effect == {
        "s3.part.size",
        "storage.class",
        "format.class",
        "partitioner.class",
        "schema.compatibility",
    }


def test_all_unsupported_keys_are_refused_together_each_with_reason_and_hint() -> None:
    peer = {
        **QUICK_START,
        "bootstrap.servers": "h:1",
        "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
        "partitioner.class": "io.confluent.connect.storage.partitioner.TimeBasedPartitioner",
        "path.format": "'year'=YYYY",
        "partition.duration.ms": "3600000",
        "timestamp.extractor": "Record",
        "locale": "en",
        "timezone": "UTC",
        "rotate.interval.ms": "60000",
        "behavior.on.null.values": "ignore",
        "s3.acl.canned": "bucket-owner-full-control",
        "s3.object.tagging": "true",
        "transforms": "route",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "s3.proxy.url": "http://proxy:3128",
        "s3.proxy.password": "hunter22",
        "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
        "flush.sise": "1",
    }
    findings = sink(peer)
    refused = {mistake.key: mistake for mistake in findings.mistakes}
    assert set(refused) == {
        "format.class",
        "partitioner.class",
        "rotate.interval.ms",
        "behavior.on.null.values",
        "s3.acl.canned",
        "s3.object.tagging",
        "transforms",
        "transforms.route.type",
        "s3.proxy.url",
        "s3.proxy.password",
        "value.converter",
        "flush.sise",
    }
    for mistake in refused.values():
        assert mistake.hint
        assert "hunter22" not in str(mistake)
    assert "segment.ms" in (refused["rotate.interval.ms"].hint or "")
    assert "HTTPS_PROXY" in (refused["s3.proxy.url"].hint or "")
    assert "ParquetFormat" in refused["format.class"].message


def test_aivens_example_lists_the_keys_to_remove() -> None:
    """The example of the connector's README, with the worker's `bootstrap.servers`."""
    example = {
        "name": "my-s3-connector",
        "connector.class": "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector",
        "tasks.max": "1",
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "header.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "topics": "topic1,topic2",
        "aws.access.key.id": "YOUR_AWS_ACCESS_KEY_ID",
        "aws.secret.access.key": "YOUR_AWS_SECRET_ACCESS_KEY",
        "aws.s3.bucket.name": "my-bucket",
        "aws.s3.region": "us-east-1",
        "file.compression.type": "gzip",
        "file.max.records": "0",
        "format.output.type": "jsonl",
        "format.output.fields": "key,value,offset,timestamp",
        "format.output.fields.value.encoding": "none",
        "kafka.retry.backoff.ms": "1000",
        "bootstrap.servers": "h:1",
    }
    assert {mistake.key for mistake in sink(example).mistakes} == {"file.compression.type", "format.output.type"}
    rest = {key: value for key, value in example.items() if key not in {"file.compression.type", "format.output.type"}}
    options = sink(rest).options
    assert options is not None
    assert (options.bucket, options.region, options.flush_size) == ("my-bucket", "us-east-1", 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store.kafka.keys", "true"),
        ("store.kafka.headers", "TRUE"),
        ("behavior.on.null.values", "write"),
        ("format.class", "AvroFormat"),
        ("enable.conditional.writes", "true"),
        ("rotate.interval.ms", "-1"),
        ("rotate.schedule.interval.ms", "-1"),
        ("s3.compression.type", "none"),
        ("schema.compatibility", "none"),
        ("s3.wan.mode", "false"),
        ("s3.proxy.url", ""),
        ("confluent.topic.bootstrap.servers", "h:1"),
        ("confluent.license", "abc"),
        ("transforms", ""),
        ("config.action.reload", "restart"),
        ("header.converter", "org.apache.kafka.connect.storage.SimpleHeaderConverter"),
        ("value.converter.schemas.enable", "false"),
        ("format.output.type", "avro"),
    ],
)
def test_keys_that_ask_for_keyfolds_own_behaviour_are_accepted(key: str, value: str) -> None:
    assert parsed(**{key: value}).mistakes == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store.kafka.keys", "false"),
        ("behavior.on.null.values", "fail"),
        ("enable.conditional.writes", "false"),
        ("s3.compression.type", "gzip"),
        ("schema.compatibility", "BACKWARD"),
        ("s3.credentials.provider.class", "com.example.Provider"),
        ("s3.credentials.provider.sts.role.arn", "arn:aws:iam::1:role/x"),
        ("s3.sse.customer.key", "k"),
        ("directory.delim", "-"),
        ("file.name.template", "{{key}}"),
        ("file.compression.type", "gzip"),
        ("format.output.type", "jsonl"),
        ("aws.s3.prefix", "raw/"),
        ("aws.sts.role.arn", "arn:aws:iam::1:role/x"),
        ("predicates", "p"),
        ("config.storage.topic", "c"),
        ("connector.class", "io.debezium.connector.mysql.MySqlSourceConnector"),
        ("group.id", "connect-cluster"),
    ],
)
def test_keys_that_ask_for_other_behaviour_are_refused(key: str, value: str) -> None:
    (mistake,) = parsed(**{key: value}).mistakes
    assert mistake.key == key
    assert mistake.hint or key == "connector.class"


def test_keys_with_the_same_meaning_are_translated() -> None:
    values = {
        "name": "s",
        "bootstrap.servers": "h:1",
        "topics": "t",
        "aws.s3.bucket.name": "b",
        "aws.s3.region": "eu-west-1",
        "aws.s3.endpoint": "http://s3:9000",
        "aws.s3.sse.algorithm": "aws:kms",
        "file.max.records": "7",
        "rotate.schedule.interval.ms": "60000",
    }
    options = SinkOptions.parse(values)
    assert (options.bucket, options.region, options.store_url) == ("b", "eu-west-1", "http://s3:9000")
    assert (options.flush_size, options.segment_ms, options.encryption) == (7, 60_000, "aws:kms")
    assert options.shown() == values
    assert options.means_the_same(values)


def test_an_invalid_value_is_reported_under_the_given_key() -> None:
    (mistake,) = parsed(rotate__schedule__interval__ms="5").mistakes
    assert str(mistake) == "`rotate.schedule.interval.ms`: must be at least 100, not '5'"


@pytest.mark.parametrize(
    "values",
    [
        {"aws.s3.bucket.name": "b", "s3.bucket.name": "c"},
        {"s3.bucket.name": "b", "aws.s3.bucket.name": "b"},
        {"file.max.records": "1", "flush.size": "1"},
    ],
)
def test_the_same_option_under_two_names_is_refused(values: dict[str, str]) -> None:
    (mistake,) = SinkOptions.examine({**BASE, **values}).mistakes
    assert "both are set" in mistake.message


def test_a_providers_value_stays_hidden_under_an_alias() -> None:
    rewritten = rewrite({"aws.s3.endpoint": Resolved("http://hush", "${env:URL}")})
    assert isinstance(rewritten.values["store.url"], Resolved)
    (mistake,) = parsed(format__class=Resolved("hush.Format", "${env:F}")).mistakes
    assert "hush" not in str(mistake)


def test_no_foreign_key_shadows_a_key_of_keyfold() -> None:
    ours = option_table(SinkOptions)
    assert [key for key in FOREIGN if ours.knows(key)] == []
    assert {known.ours for known in FOREIGN.values() if isinstance(known, Same)} <= set(ours.entries)


def test_every_foreign_key_has_a_reason() -> None:
    for key, known in FOREIGN.items():
        if isinstance(known, Never):
            assert "" not in {known.reason, known.hint}, key
        elif isinstance(known, Anyway) and known.accepted:
            assert "" not in {known.refusal, known.hint}, key


def test_every_key_of_confluents_sink_is_explained_in_the_documentation() -> None:
    page = ROOT / "docs" / "migrating-from-connect.md"
    listed = set(re.findall(r"^\| `([a-z0-9.*]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(CONFLUENT) | set(AIVEN) <= listed
