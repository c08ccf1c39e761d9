"""Options: every mistake names its key, secrets stay hidden, and a topic's own value takes precedence."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import pytest

from keyfold.config.config_file import Resolved, resolve
from keyfold.config.options import (
    HIDDEN,
    Count,
    Flag,
    Millis,
    Names,
    Options,
    Overrides,
    SecretStr,
    StoreOptions,
    markdown_table,
    option,
)
from keyfold.errors import ConfigError
from tests.support.pickled import sent


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


class Sample(StoreOptions):
    name: str = option("name", doc="Name.", importance="high")
    topics: Names = option("topics", (), doc="Topics.")
    flush_size: Count = option("flush.size", 0, doc="Roll after | <n> records.", per_topic=True)
    retention_ms: int = option("retention.ms", -1, doc="Retention.", per_topic=True, ge=-1)
    delete_retention_ms: Millis = option("delete.retention.ms", 86_400_000, doc="Tombstones.", followed=True)
    ratio: float = option("min.cleanable.dirty.ratio", 0.5, doc="Ratio.", followed=True, ge=0, le=1)
    mode: Mode = option("mode", Mode.SLOW, doc="Mode.")
    paused: Flag = option("pause", default=False, doc="Pause.")
    policy: Literal["fail", "record"] = option("source.gap.policy", "fail", doc="Policy.", importance="low")
    consumer: Overrides = option("consumer.override.*", Overrides(), doc="Client.")
    spark_master: str = option("spark.master", "local[2]", doc="Master.")
    spark: Overrides = option("spark.*", Overrides(), doc="Spark.")


REQUIRED = {"s3.bucket.name": "log", "name": "users"}


def parse(**extra: str) -> Sample:
    return Sample.parse({**REQUIRED, **extra})


def parse_with(values: dict[str, str]) -> Sample:
    return Sample.parse({**REQUIRED, **values})


def test_strings_are_converted_to_their_types() -> None:
    options = parse_with(
        {
            "topics": "a, b ,",
            "flush.size": "3000",
            "pause": "True",
            "min.cleanable.dirty.ratio": "0.25",
            "consumer.override.session.timeout.ms": "6000",
            "spark.master": "local[8]",
            "spark.executor.memory": "2g",
        }
    )
    assert options.topics == ("a", "b")
    assert (options.flush_size, options.paused, options.ratio) == (3000, True, 0.25)
    assert options.consumer == {"session.timeout.ms": "6000"}
    assert (options.spark_master, options.spark) == ("local[8]", {"executor.memory": "2g"})
    assert options.url == "s3://log/topics"
    assert options.is_set("flush_size")
    assert not options.is_set("policy")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("flush.sise", "flush.size"),
        ("s3.bucket", "s3.bucket.name"),
        ("consumer.overide.fetch.min.bytes", "consumer.override...."),
        ("topic.a.b.flush.sizes", "topic.a.b.flush.size"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_with({key: "1"})
    assert caught.value.key == key
    assert caught.value.hint == f"did you mean `{meant}`?"
    if not key.startswith("topic."):
        assert caught.value.message == f"unknown key `{key}`"


@pytest.mark.parametrize(
    "key", ["zzz", "flush_size", "consumer.override.", "consumer.override.*", "topic.", "topic.x", ""]
)
def test_unknown_keys_without_a_similar_key_are_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_with({key: "1"})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("flush.size", "many", "whole number, not 'many'"),
        ("flush.size", "1.5", "whole number"),
        ("flush.size", "-1", "at least 0, not '-1'"),
        ("flush.size", "", "whole number, not ''"),
        ("pause", "yes", "true or false, not 'yes'"),
        ("min.cleanable.dirty.ratio", "2", "at most 1"),
        ("min.cleanable.dirty.ratio", "nan", "number"),
        ("source.gap.policy", "ignore", "must be 'fail' or 'record', not 'ignore'"),
        ("mode", "warp", "must be 'fast' or 'slow', not 'warp'"),
        ("s3.bucket.name", "", "must not be empty"),
        ("topics.dir", "/topics", "must not begin or end with a slash"),
        ("topic.users.flush.size", "many", "whole number, not 'many'"),
        ("topic.users.pause", "true", "`pause` cannot be set per topic"),
        ("aws.access.key.id", "AK", "`aws.secret.access.key` is required because `aws.access.key.id` is set"),
    ],
)
def test_a_wrong_value_names_its_key(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_with({key: value})
    assert caught.value.key == ("aws.secret.access.key" if key == "aws.access.key.id" else key)


def test_a_missing_key_is_named_and_further_mistakes_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"^missing required key `s3\.bucket\.name`") as caught:
        Sample.parse({"name": "users", "flush.size": "x"})
    assert caught.value.key == "s3.bucket.name"
    assert caught.value.hint == "also wrong: `flush.size`"


def test_secrets_appear_in_no_text() -> None:
    options = parse_with(
        {
            "aws.access.key.id": "AK",
            "aws.secret.access.key": "hunter2",
            "consumer.override.sasl.password": "hunter2",
            "topic.a.flush.size": "1",
        }
    )
    assert options.secret_access_key is not None
    assert options.secret_access_key.get_secret_value() == "hunter2"
    assert options.consumer["sasl.password"] == "hunter2"
    for text in (
        repr(options),
        str(options),
        str(options.model_dump()),
        options.model_dump_json(),
        repr(options.for_topic("a")),
    ):
        assert "hunter2" not in text


def test_an_error_does_not_repeat_a_providers_value() -> None:
    with pytest.raises(ConfigError, match="whole number") as caught:
        parse_with({"flush.size": Resolved("hunter2")})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_precedence_is_topic_then_general_then_kafka_then_default() -> None:
    general = {
        "topics": "a.b,c",
        "flush.size": "10",
        "topic.a.b.flush.size": "20",
        "topic.a.b.min.cleanable.dirty.ratio": "0.1",
    }
    options = parse_with(general)
    kafka = {"delete.retention.ms": "5", "min.cleanable.dirty.ratio": "0.9", "retention.ms": "1000", "unknown": "x"}
    ours, other = options.for_topic("a.b", kafka), options.for_topic("c", kafka)
    assert (ours.flush_size, other.flush_size, options.flush_size) == (20, 10, 10)
    assert (ours.ratio, other.ratio, options.ratio) == (0.1, 0.9, 0.5)
    assert (ours.delete_retention_ms, options.delete_retention_ms) == (5, 86_400_000)
    assert other.retention_ms == -1
    assert other.is_set("delete_retention_ms")
    general_wins = parse_with({"delete.retention.ms": "7"}).for_topic("c", kafka)
    assert general_wins.delete_retention_ms == 7
    assert options.topics_with_own_values == ("a.b",)
    assert Sample.followed_keys() == {"delete.retention.ms", "min.cleanable.dirty.ratio"}
    assert options.for_topic("c") is options


def test_topic_names_with_dots_are_split_at_the_longest_key_or_by_the_listed_topics() -> None:
    key = "topic.users.delete.retention.ms"
    assert parse_with({key: "9"}).for_topic("users").delete_retention_ms == 9
    assert parse_with({key: "9", "topics": "users.delete"}).for_topic("users.delete").retention_ms == 9
    assert parse_with({key: "9", "topics": "users,other"}).for_topic("users").delete_retention_ms == 9
    with pytest.raises(ConfigError, match="is ambiguous: it may mean"):
        parse_with({key: "9", "topics": "users,users.delete"})
    assert parse_with({"topic.flush.size.flush.size": "9"}).for_topic("flush.size").flush_size == 9


def test_options_are_immutable_and_can_be_pickled() -> None:
    options = parse_with({"topic.a.flush.size": "9", "consumer.override.x": "y"})
    with pytest.raises(ValueError, match="frozen"):
        options.flush_size = 5
    there = sent(options)
    assert there == options
    assert there.for_topic("a").flush_size == 9


def test_a_model_can_be_built_by_field_names() -> None:
    assert Sample(bucket="log", name="x", flush_size=3).flush_size == 3


def test_the_table_lists_every_option_once_by_importance() -> None:
    table = markdown_table(Sample)
    assert sum(line.startswith("| `") for line in table.splitlines()) == len(Sample.model_fields)
    rows = [line for line in table.partition("\n### Store\n")[0].splitlines() if line.startswith("| `")]
    assert rows[0].startswith("| `name` | string | (required) | high |")
    assert rows[-1] == "| `source.gap.policy` | `fail` or `record` | `fail` | low | Policy. |"
    assert "| `flush.size` | whole number | `0` | medium, per topic | Roll after \\| \\<n> records. |" in rows
    assert "| `delete.retention.ms` | whole number | `86400000` | medium, per topic, followed | Tombstones. |" in rows
    assert "| `pause` | boolean | `false` | medium | Pause. |" in rows
    assert "| `mode` | `fast` or `slow` | `slow` | medium | Mode. |" in rows
    assert "| `topics` | list |  | medium | Topics. |" in rows
    assert "| `spark.*` | keys and values |  | medium | Spark. |" in rows
    assert "| `aws.secret.access.key` | secret |  |" in table
    assert table == markdown_table(Sample)


def test_every_option_has_a_description() -> None:
    for info in StoreOptions.model_fields.values():
        assert info.alias
        assert info.description
    assert issubclass(StoreOptions, Options)


class Shown(StoreOptions):
    """Options with values of every kind that must be hidden."""

    name: str = option("name", doc="Name.")
    token: SecretStr | None = option("rest.token", None, doc="A secret.")
    registry: str | None = option("registry.url", None, doc="A URL.")
    size: int = option("flush.size", 3, doc="A number.", per_topic=True)
    consumer: Overrides = option("consumer.override.*", Overrides(), doc="Passed on.")


def shown(**more: str) -> dict[str, str]:
    return {"name": "users", "s3.bucket.name": "log", **more}


@pytest.mark.parametrize(
    "key",
    [
        "rest.token",
        "consumer.override.sasl.password",
        "consumer.override.ssl.key.password",
        "consumer.override.ssl.key.pem",
        "consumer.override.sasl.jaas.config",
        "consumer.override.sasl.oauthbearer.client.secret",
        "consumer.override.basic.auth.user.info",
        "consumer.override.basic.auth.credentials",
    ],
)
def test_secrets_are_hidden_in_a_shown_configuration(key: str) -> None:
    assert Shown.parse(shown(**{key: "s3cr3t"})).shown() == shown(**{key: HIDDEN})


def test_other_values_are_shown_as_given() -> None:
    given = shown(
        **{"flush.size": "0007", "topic.users.flush.size": "9", "consumer.override.sasl.mechanism": "PLAIN"},
        **{"consumer.override.group.instance.id": "a", "consumer.override.ssl.keystore.location": "/k"},
    )
    assert Shown.parse(given).shown() == given


def test_only_the_password_of_a_url_is_hidden() -> None:
    options = Shown.parse(shown(**{"registry.url": "http://me:s3cr3t@registry:8081/a,http://b@r:1"}))
    assert options.shown()["registry.url"] == f"http://{HIDDEN}@registry:8081/a,http://{HIDDEN}@r:1"


def test_a_providers_value_is_shown_as_its_placeholder() -> None:
    values = resolve(shown(**{"registry.url": "http://${env:HOST}/"}), {"HOST": "hush"})
    options = Shown.parse(values)
    assert options.registry == "http://hush/"
    assert options.shown()["registry.url"] == "http://${env:HOST}/"


def test_a_configuration_equals_its_shown_form_and_its_form_with_defaults() -> None:
    options = Shown.parse(shown(**{"rest.token": "t0p", "topic.a.flush.size": "9"}))
    assert options.means_the_same(options.shown())
    assert options.means_the_same({**options.shown(), "rest.token": "t0p", "flush.size": "3"})


@pytest.mark.parametrize(
    "change",
    [{"flush.size": "4"}, {"topic.a.flush.size": "8"}, {"rest.token": "other"}, {"nonsense": "1"}, {"flush.size": "x"}],
)
def test_configurations_that_differ_are_not_equal(change: dict[str, str]) -> None:
    options = Shown.parse(shown(**{"rest.token": "t0p", "topic.a.flush.size": "9"}))
    assert not options.means_the_same({**options.shown(), **change})


def test_a_hidden_value_that_was_never_set_differs() -> None:
    assert not Shown.parse(shown()).means_the_same(shown(**{"rest.token": HIDDEN}))
