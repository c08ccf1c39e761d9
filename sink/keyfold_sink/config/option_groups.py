"""The sink's options that it shares with Kafka Connect: converters, errors, tasks, the REST API.

Each class is a part of `keyfold_sink.config.options.SinkOptions`. To add a key, add a field with `option(...)` to the
part where users look for it. Checks against other keys belong to that part's `contradictions`. `make docs` prints the
documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal

from keyfold.config.options import Flag, Millis, Names, Options, Overrides, Port, SecretStr, option
from keyfold.errors import ConfigError
from keyfold.formats.format import FORMAT_NAMES
from keyfold.runtime.listeners import SettingNames, parse_listeners, require_token
from keyfold_sink.config.converter_settings import parse_converter, parse_header_converter

DEFAULT_LISTENER: Final = "http://127.0.0.1:8083"
REST: Final = SettingNames("listeners", "rest.token", "rest.advertised.host.name")

_converter = partial(option, group="Converters", recommended=FORMAT_NAMES, kind="CLASS")
_setting = partial(option, group="Converters", importance="low")
_error = partial(option, group="Error Handling")
_task = partial(option, group="Tasks")
_rest = partial(option, group="REST")
_metrics = partial(option, group="Metrics")


def found_by(*checks: Callable[[], object]) -> Iterator[ConfigError]:
    """Yield the first mistake that each check raises."""
    for check in checks:
        try:
            check()
        except ConfigError as mistake:
            yield mistake


class ConverterOptions(Options):
    """The format that records must have. A converter only checks records; it never changes them."""

    key_converter: str = _converter(
        "key.converter",
        "bytes",
        doc="Format that each key must have: bytes (any), string (UTF-8), json, avro (with a schema id), or the class "
        "of a converter of Connect. The log always contains the original bytes.",
        dependents=("key.converter.*",),
    )
    value_converter: str = _converter(
        "value.converter",
        "bytes",
        doc="Format that each value must have, as with key.converter. A null value is a tombstone and always valid.",
        dependents=("value.converter.*",),
    )
    header_converter: str = _converter(
        "header.converter",
        "bytes",
        doc="Format that the value of each header must have. Connect's SimpleHeaderConverter accepts any value.",
        importance="low",
    )
    key_converter_settings: Overrides = _setting(
        "key.converter.*",
        Overrides(),
        doc="Settings of the key converter, such as schema.registry.url and schemas.enable.",
    )
    value_converter_settings: Overrides = _setting(
        "value.converter.*", Overrides(), doc="Settings of the value converter, such as schema.registry.url."
    )
    header_converter_settings: Overrides = _setting(
        "header.converter.*", Overrides(), doc="Settings of the header converter."
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
    """The handling of records that their converter refuses."""

    errors_tolerance: Literal["none", "all"] = _error(
        "errors.tolerance",
        "none",
        doc="none: a record that its converter refuses fails its partition. all: the record is left out of the log, "
        "its offset is recorded as a gap with the cause, and it goes to the dead letter topic, if there is one.",
        dependents=("errors.deadletterqueue.topic.name",),
    )
    errors_retry_timeout_ms: int = _error(
        "errors.retry.timeout",
        -1,
        doc="How long, in ms, requests to an unavailable Schema Registry are retried before the partitions that need "
        "it fail. -1: without limit (Connect: 0, fail at once). No record is left out because of the registry, even "
        "with errors.tolerance=all. Requests to the store and the brokers are always retried. A record that its "
        "converter refuses is not checked again.",
        importance="low",
        ge=-1,
    )
    errors_retry_delay_max_ms: Millis = _error(
        "errors.retry.delay.max.ms",
        10_000,
        doc="Longest pause, in ms, between two requests to an unavailable Schema Registry (Connect: 60000).",
        importance="low",
    )
    errors_log_enable: Flag = _error(
        "errors.log.enable", False, doc="Log each record that is left out, with topic, partition and offset."
    )
    errors_log_include_messages: Flag = _error(
        "errors.log.include.messages",
        False,
        doc="Include the converter's message in these log lines. The message may quote the record.",
    )
    dead_letter_topic: str = _error(
        "errors.deadletterqueue.topic.name",
        "",
        doc="Topic for records that are left out (errors.tolerance=all). Empty: none. The group's offset passes a "
        "record only after the brokers have confirmed its dead letter.",
        dependents=(
            "errors.deadletterqueue.topic.replication.factor",
            "errors.deadletterqueue.context.headers.enable",
        ),
    )
    dead_letter_replication_factor: int = _error(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        doc="Replication factor of the dead letter topic if the sink creates it. -1: the brokers' default.",
        ge=-1,
        le=32_767,
    )
    dead_letter_context_headers: Flag = _error(
        "errors.deadletterqueue.context.headers.enable",
        False,
        doc="Add headers to each dead letter that say where the record was and what failed (__connect.errors.*).",
    )


class TaskOptions(Options):
    """How tasks share partitions, end, and commit offsets for lag monitoring."""

    tasks_max: int = option(
        "tasks.max",
        1,
        doc="Number of task processes of this worker. Each takes a share of the partitions.",
        importance="high",
        group="Common",
        ge=1,
        le=256,
    )
    tasks_max_enforce: Flag = option(
        "tasks.max.enforce", True, doc="A key of Connect; it has no effect.", importance="low", group="Common"
    )
    offset_flush_interval_ms: int = _task(
        "offset.flush.interval.ms",
        1000,
        doc="How often group offsets are committed, for lag monitoring. Unlike in some other sinks, this does not "
        "finish segments.",
        ge=10,
    )
    offset_flush_timeout_ms: Millis = _task(
        "offset.flush.timeout.ms",
        30_000,
        doc="How long a revoked partition may flush. Its new owner reads records again that were not committed by "
        "then.",
    )
    shutdown_timeout_ms: Millis = _task(
        "task.shutdown.graceful.timeout.ms", 25_000, doc="How long a task may flush when it is stopped."
    )
    task_hang_timeout_ms: int = _task(
        "task.hang.timeout.ms",
        300_000,
        doc="A task that has not reported for this long is killed and replaced. Its replacement may take twice as long "
        "until its first report, and each further one twice as long again, up to eight times. The value must exceed "
        "offset.flush.timeout.ms.",
        ge=1000,
    )
    worker_id: str | None = _task(
        "worker.id",
        None,
        doc="Name of this worker; each worker needs its own. Default: host:port of its REST API.",
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
                f"must exceed `offset.flush.timeout.ms` ({self.offset_flush_timeout_ms}): a task that flushes may be "
                "silent for that time",
            )


class RestOptions(Options):
    """The addresses of the REST API, and its token."""

    listeners: Names = _rest(
        "listeners",
        (DEFAULT_LISTENER,),
        doc="Addresses of the REST API, http://host:port separated by commas. Port 0: any free port. Empty: no API. If "
        "a port is in use, the worker ends at its start, so a second worker on the same host needs another port, or 0. "
        "Any address other than loopback requires rest.token.",
        dependents=("rest.token",),
    )
    rest_token: SecretStr | None = _rest(
        "rest.token",
        None,
        doc="Token that callers of the REST API must send (Authorization: Bearer, or as the password of Basic). "
        "Health, readiness and metrics need no token. Write it as ${env:...} or ${file:...}, not as plain text.",
    )
    rest_advertised_host_name: str | None = _rest(
        "rest.advertised.host.name",
        None,
        doc="Host name in this worker's worker_id. Default: the machine's name.",
        importance="low",
        min_length=1,
    )
    rest_advertised_port: int | None = _rest(
        "rest.advertised.port",
        None,
        doc="Port in this worker's worker_id. Default: the first listener's.",
        importance="low",
        ge=1,
        le=65535,
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        token = self.rest_token
        yield from found_by(
            lambda: require_token(
                parse_listeners(self.listeners, REST), None if token is None else token.get_secret_value(), REST
            )
        )


class MetricsOptions(Options):
    """A port for metrics besides the REST API's `/metrics`, and the number of per-partition metrics."""

    metrics_port: Port = _metrics(
        "metrics.port",
        0,
        doc="Additional port that serves metrics for Prometheus. 0: metrics are only at /metrics of the REST API. Use "
        "it if Prometheus runs on another machine and the API listens on loopback or is off.",
    )
    metrics_host: str = _metrics(
        "metrics.host",
        "127.0.0.1",
        doc="Address of metrics.port. 0.0.0.0: other machines can connect. There is no password.",
        importance="low",
        min_length=1,
    )
    metrics_all_partitions: Flag = _metrics(
        "metrics.all.partitions",
        False,
        doc="Serve per-partition metrics of every partition. By default they are limited to ten partitions, the worst "
        "ones of each metric.",
        importance="low",
    )


class ConnectOptions(Options):
    """Keys of Connect that are accepted and have no effect."""

    connector_class: str | None = option(
        "connector.class",
        None,
        doc="A key of Connect; it has no effect. The class of a source connector is refused.",
        importance="low",
        group="Common",
        kind="CLASS",
    )
    config_action_reload: Literal["none", "restart"] = option(
        "config.action.reload",
        "restart",
        doc="A key of Connect; it has no effect: ${env:...} and ${file:...} are read when the sink starts.",
        importance="low",
        group="Common",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if self.connector_class is not None and self.connector_class.endswith("SourceConnector"):
            yield ConfigError(
                "connector.class", f"{self.connector_class!r} is a source connector; keyfold has a sink only"
            )
