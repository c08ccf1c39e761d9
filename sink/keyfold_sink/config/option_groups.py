"""The sink's options that it shares with Kafka Connect: converters, errors, tasks, the REST API.

Each class is a part of `keyfold_sink.config.options.SinkOptions`. To add a key: a field with `option(...)` in the
part where users look for it; what it contradicts goes into that part's `contradictions`. `make docs` prints the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal

from keyfold.errors import ConfigError
from keyfold.options import Flag, Millis, Names, Options, Overrides, Port, SecretStr, option
from keyfold_sink.convert.settings import parse_converter, parse_header_converter
from keyfold_sink.rest.addresses import DEFAULT_LISTENER, parse_listeners, require_token

CONVERTERS: Final = ("bytes", "string", "json", "avro")

_converter = partial(option, group="Converters", recommended=CONVERTERS, kind="CLASS")
_setting = partial(option, group="Converters", importance="low")
_error = partial(option, group="Error Handling")
_task = partial(option, group="Tasks")
_rest = partial(option, group="REST")
_metrics = partial(option, group="Metrics")


def found_by(*checks: Callable[[], object]) -> Iterator[ConfigError]:
    """What checks that raise find, each its first mistake."""
    for check in checks:
        try:
            check()
        except ConfigError as mistake:
            yield mistake


class ConverterOptions(Options):
    """What records must be. A converter checks and never changes a byte."""

    key_converter: str = _converter(
        "key.converter",
        "bytes",
        doc="What a key must be: bytes (anything), string (UTF-8), json, avro (by schema id), or a class of Connect's. "
        "The log holds the original bytes in any case.",
        dependents=("key.converter.*",),
    )
    value_converter: str = _converter(
        "value.converter",
        "bytes",
        doc="What a value must be, as with key.converter. A null value is a tombstone and always right.",
        dependents=("value.converter.*",),
    )
    header_converter: str = _converter(
        "header.converter",
        "bytes",
        doc="What the value of each header must be; Connect's SimpleHeaderConverter takes anything.",
        importance="low",
    )
    key_converter_settings: Overrides = _setting(
        "key.converter.*", Overrides(), doc="Settings of the key's converter: schema.registry.url, schemas.enable, ..."
    )
    value_converter_settings: Overrides = _setting(
        "value.converter.*", Overrides(), doc="Settings of the value's converter, such as schema.registry.url."
    )
    header_converter_settings: Overrides = _setting(
        "header.converter.*", Overrides(), doc="Settings of the headers' converter."
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        yield from found_by(
            lambda: parse_converter("key.converter", self.key_converter, self.key_converter_settings),
            lambda: parse_converter("value.converter", self.value_converter, self.value_converter_settings),
            lambda: parse_header_converter("header.converter", self.header_converter, self.header_converter_settings),
        )


class ErrorOptions(Options):
    """What happens to a record that fails its converter's check."""

    errors_tolerance: Literal["none", "all"] = _error(
        "errors.tolerance",
        "none",
        doc="none: a record that fails its check fails its partition. all: it is left out of the log, its offset is "
        "recorded as a gap with the cause, and it goes to the dead letter topic if there is one.",
        dependents=("errors.deadletterqueue.topic.name",),
    )
    errors_retry_timeout_ms: int = _error(
        "errors.retry.timeout",
        -1,
        doc="How long, in ms, a Schema Registry that is away is asked again before the partitions that need it fail; "
        "-1: for ever (Connect: 0, at once). No record is left out for it, also with errors.tolerance=all. Store and "
        "brokers are always waited for; a record that fails its check is not checked twice.",
        importance="low",
        ge=-1,
    )
    errors_retry_delay_max_ms: Millis = _error(
        "errors.retry.delay.max.ms",
        10_000,
        doc="To how many ms the pauses grow between two questions to a Schema Registry that is away (Connect: 60000).",
        importance="low",
    )
    errors_log_enable: Flag = _error(
        "errors.log.enable", False, doc="Log each record that is left out, with topic, partition and offset."
    )
    errors_log_include_messages: Flag = _error(
        "errors.log.include.messages",
        False,
        doc="Say in these log lines what the converter says about the record. It may quote the record.",
    )
    dead_letter_topic: str = _error(
        "errors.deadletterqueue.topic.name",
        "",
        doc="Topic for records that are left out (errors.tolerance=all); empty: none. The group's offsets pass a "
        "record only when the brokers have its dead letter.",
        dependents=(
            "errors.deadletterqueue.topic.replication.factor",
            "errors.deadletterqueue.context.headers.enable",
        ),
    )
    dead_letter_replication_factor: int = _error(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        doc="Replicas of the dead letter topic where the sink creates it; -1: the brokers' default.",
        ge=-1,
        le=32_767,
    )
    dead_letter_context_headers: Flag = _error(
        "errors.deadletterqueue.context.headers.enable",
        False,
        doc="Say in headers of a dead letter where the record was and what failed (__connect.errors.*).",
    )


class TaskOptions(Options):
    """How tasks take their share, end, and report how far the log is."""

    tasks_max: int = option(
        "tasks.max",
        1,
        doc="Processes; each takes its share of the partitions.",
        importance="high",
        group="Common",
        ge=1,
        le=256,
    )
    tasks_max_enforce: Flag = option(
        "tasks.max.enforce", True, doc="Accepted for Connect's sake and ignored.", importance="low", group="Common"
    )
    offset_flush_interval_ms: int = _task(
        "offset.flush.interval.ms",
        1000,
        doc="How often group offsets are committed, for lag monitoring. It cuts no segments, as it does elsewhere.",
        ge=10,
    )
    offset_flush_timeout_ms: Millis = _task(
        "offset.flush.timeout.ms",
        30_000,
        doc="How long a partition that is taken away may flush; what is not committed then is read again by its new "
        "owner.",
    )
    shutdown_timeout_ms: Millis = _task(
        "task.shutdown.graceful.timeout.ms", 25_000, doc="How long a task may flush when it is told to stop."
    )
    task_hang_timeout_ms: int = _task(
        "task.hang.timeout.ms",
        300_000,
        doc="A task that has not reported for this long is killed and replaced. Must exceed offset.flush.timeout.ms.",
        ge=1000,
    )
    worker_id: str | None = _task(
        "worker.id",
        None,
        doc="What this worker is known by; each needs its own. Default: host:port of its REST API.",
        importance="low",
        min_length=1,
        max_length=200,
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if self.task_hang_timeout_ms <= self.offset_flush_timeout_ms:
            yield ConfigError(
                "task.hang.timeout.ms",
                f"must exceed offset.flush.timeout.ms ({self.offset_flush_timeout_ms}): a task is silent that long",
            )


class RestOptions(Options):
    """Where the REST API listens, and who may call it."""

    listeners: Names = _rest(
        "listeners",
        (DEFAULT_LISTENER,),
        doc="Where the REST API listens, http://host:port separated by commas; port 0: any free one; empty: no API. A "
        "port that is taken ends the worker at its start: a second worker on one host needs a port of its own, or 0. "
        "Any address but loopback needs rest.token.",
        dependents=("rest.token",),
    )
    rest_token: SecretStr | None = _rest(
        "rest.token",
        None,
        doc="Who calls the REST API sends it (Authorization: Bearer, or as the password of Basic); health, readiness "
        "and metrics need none. Write it as ${env:...} or ${file:...}, not in the file.",
    )
    rest_advertised_host_name: str | None = _rest(
        "rest.advertised.host.name",
        None,
        doc="The host that workers are known by (worker_id). Default: the machine's name.",
        importance="low",
        min_length=1,
    )
    rest_advertised_port: int | None = _rest(
        "rest.advertised.port",
        None,
        doc="The port that workers are known by. Default: the first listener's.",
        importance="low",
        ge=1,
        le=65535,
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        token = self.rest_token
        yield from found_by(
            lambda: require_token(parse_listeners(self.listeners), None if token is None else token.get_secret_value())
        )


class MetricsOptions(Options):
    """Where metrics are served beside the REST API's `/metrics`, and how many."""

    metrics_port: Port = _metrics(
        "metrics.port",
        0,
        doc="Serve metrics for Prometheus on a port of their own, too; 0: only at /metrics of the REST API. For a "
        "scrape from elsewhere while the API stays on loopback, or is off.",
    )
    metrics_host: str = _metrics(
        "metrics.host",
        "127.0.0.1",
        doc="Address of that port; 0.0.0.0 for a scrape from elsewhere. There is no password.",
        importance="low",
        min_length=1,
    )
    metrics_all_partitions: Flag = _metrics(
        "metrics.all.partitions",
        False,
        doc="Metrics of every partition by itself. Default: of the ten that are worst off, by each metric.",
        importance="low",
    )


class ConnectOptions(Options):
    """Keys of Connect that a configuration may hold and that decide nothing here."""

    connector_class: str | None = option(
        "connector.class",
        None,
        doc="Accepted for Connect's sake and ignored, if it is a sink's.",
        importance="low",
        group="Common",
        kind="CLASS",
    )
    config_action_reload: Literal["none", "restart"] = option(
        "config.action.reload",
        "restart",
        doc="Accepted for Connect's sake: ${env:...} and ${file:...} are read when the sink starts.",
        importance="low",
        group="Common",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if self.connector_class is not None and self.connector_class.endswith("SourceConnector"):
            yield ConfigError("connector.class", f"{self.connector_class!r} is a source: this is a sink")
