"""The sink's configuration: accepted values, and mistakes that name their key."""

from __future__ import annotations

import pytest

from keyfold.errors import ConfigError
from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config, consumer_config, open_consumer
from keyfold_sink.kafka.contact import BrokerContact
from tests.support.untyped import untyped

BASE = {
    "name": "users",
    "bootstrap.servers": "127.0.0.1:9092",
    "topics": "users",
    "s3.bucket.name": "log",
}


def parse(**changes: str | None) -> SinkOptions:
    values = {**BASE, **{key.replace("__", "."): value for key, value in changes.items()}}
    return SinkOptions.parse({key: value for key, value in values.items() if value is not None})


def test_a_typical_configuration_is_accepted() -> None:
    options = parse(
        tasks__max="1",
        topics__dir="topics",
        flush__size="3000",
        segment__ms="60000",
        consumer__override__session__timeout__ms="6000",
    )
    assert options.group_id == "connect-users"
    assert options.url == "s3://log/topics"
    policy = options.roll_policy("users")
    assert (policy.segment_bytes, policy.segment_ms, policy.flush_size) == (128 * 1024 * 1024, 60_000, 3000)


def test_connect_keys_without_effect_are_accepted() -> None:
    parse(
        connector__class="io.confluent.connect.s3.S3SinkConnector",
        tasks__max__enforce="false",
        key__converter="org.apache.kafka.connect.converters.ByteArrayConverter",
        value__converter="bytes",
        header__converter="org.apache.kafka.connect.storage.SimpleHeaderConverter",
    )


def test_a_topic_may_have_its_own_roll_limits() -> None:
    options = parse(
        flush__size="5",
        topic__users__flush__size="7",
        topic__users__segment__ms="200",
        topic__users__segment__bytes="2000",
    )
    assert options.roll_policy("users").flush_size == 7
    assert options.roll_policy("users").segment_ms == 200
    assert options.roll_policy("users").segment_bytes == 2000
    assert options.roll_policy("orders").flush_size == 5


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"topics": None}, "topics"),
        ({"topics__regex": "u.*"}, "topics"),
        ({"topics": None, "topics__regex": "("}, "topics.regex"),
        ({"topics": "a,a"}, "topics"),
        ({"topics": "no/slash"}, "topics"),
        ({"name": " "}, "name"),
        ({"bootstrap__servers": None}, "bootstrap.servers"),
        ({"s3__bucket__name": None}, "s3.bucket.name"),
        ({"tasks__max": "0"}, "tasks.max"),
        ({"tasks__max": "two"}, "tasks.max"),
        ({"segment__bytes": "10"}, "segment.bytes"),
        ({"segment__ms": "1"}, "segment.ms"),
        ({"buffer__memory": "1000"}, "buffer.memory"),
        ({"avro__codec": "lz4"}, "avro.codec"),
        ({"source__gap__policy": "ignore"}, "source.gap.policy"),
        ({"errors__tolerance": "some"}, "errors.tolerance"),
        ({"value__converter": "io.confluent.connect.protobuf.ProtobufConverter"}, "value.converter"),
        ({"value__converter": "avro"}, "value.converter.schema.registry.url"),
        ({"header__converter": "avro"}, "header.converter"),
        ({"key__converter": "nonsense"}, "key.converter"),
        ({"consumer__override__group__id": "x"}, "consumer.override.group.id"),
        ({"consumer__override__auto__offset__reset": "latest"}, "consumer.override.auto.offset.reset"),
        ({"flush__sice": "1"}, "flush.sice"),
        ({"topic__users__tasks__max": "1"}, "topic.users.tasks.max"),
    ],
)
def test_a_mistake_names_its_key(changes: dict[str, str | None], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    assert caught.value.key == key


def test_overrides_reach_the_clients_except_for_settings_that_the_sink_requires() -> None:
    options = parse(
        consumer__override__session__timeout__ms="6000",
        consumer__override__sasl__password="secret",
        admin__override__client__id="me",
    )
    config = consumer_config(options, plan_memory(options.buffer_memory))
    assert config["session.timeout.ms"] == "6000"
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == "read_committed"
    assert config["enable.auto.commit"] is False
    assert untyped(config["queued.max.messages.kbytes"]) * 1024 <= options.buffer_memory // 8
    assert admin_config(options) == {
        "bootstrap.servers": "127.0.0.1:9092",
        "sasl.password": "secret",
        "client.id": "me",
    }


def test_a_regular_expression_matches_whole_names() -> None:
    options = parse(topics=None, topics__regex="user.|orders")
    assert options.choose_topics(["users", "users2", "orders", "xorders"]) == ["orders", "users"]
    assert parse(topics="b, a").choose_topics([]) == ["b", "a"]


def test_a_larger_receive_limit_of_the_user_is_kept() -> None:
    plan = plan_memory(64 * 1024 * 1024)
    key = "receive.message.max.bytes"
    assert consumer_config(parse(), plan)[key] == 100_000_000
    assert (
        consumer_config(parse(consumer__override__receive__message__max__bytes="300000000"), plan)[key] == 300_000_000
    )
    with pytest.raises(ConfigError, match=key):
        consumer_config(parse(consumer__override__receive__message__max__bytes="much"), plan)


def test_a_key_unknown_to_the_kafka_client_is_a_configuration_error() -> None:
    options, plan = parse(consumer__override__no__such__key="1"), plan_memory(64 * 1024 * 1024)
    with pytest.raises(ConfigError, match=r"no\.such\.key"):
        open_consumer(options, plan, lambda *_: None, lambda _error: None, BrokerContact(ManualClock()))
    with pytest.raises(ConfigError, match=r"no\.such\.key"):
        AdminSource(admin_config(parse(admin__override__no__such__key="1")), ManualClock())


def test_each_task_has_its_own_static_member_id() -> None:
    options = parse(tasks__max="2", consumer__override__group__instance__id="pod")
    assert options.for_task(1).consumer == {"group.instance.id": "pod-1"}
    assert options.consumer == {"group.instance.id": "pod"}
    assert parse(consumer__override__group__instance__id="pod").for_task(0).consumer == {"group.instance.id": "pod"}
    assert parse(tasks__max="2").for_task(1).consumer == {}


def test_an_invalid_value_causes_no_contradiction_with_its_default() -> None:
    given = {**BASE, "task.hang.timeout.ms": "soon", "offset.flush.timeout.ms": "400000"}
    (mistake,) = SinkOptions.examine(given).mistakes
    assert "whole number" in mistake.message
    (mistake,) = SinkOptions.examine({**given, "task.hang.timeout.ms": "1000"}).mistakes
    assert "must exceed" in mistake.message


def test_contradictions_are_reported_together_with_missing_and_invalid_keys() -> None:
    given = {"topics": "a", "errors.deadletterqueue.topic.name": "a", "flush.size": "x", "aws.access.key.id": "AK"}
    assert {mistake.key for mistake in SinkOptions.examine(given).mistakes} == {
        *("name", "bootstrap.servers", "s3.bucket.name", "flush.size"),
        *("errors.deadletterqueue.topic.name", "aws.secret.access.key"),
    }
