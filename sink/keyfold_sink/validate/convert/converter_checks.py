"""Build the checks of a task from its configuration.

    checks_of(options...) ──► None                      all converters are bytes: there is no validation
                          └─► ConverterChecks           one column check for each part of a record that has one

A record fails by its first part that fails, in the order key, value, headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, assert_never

from keyfold.errors import ConfigError
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.record import RecordColumns
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold_sink.config.converter_settings import (
    AvroConverter,
    BytesConverter,
    Converter,
    JsonConverter,
    NumberConverter,
    StringConverter,
    parse_converter,
    parse_header_converter,
)
from keyfold_sink.config.registry_settings import RegistrySettings
from keyfold_sink.validate.convert.api import Checks, ConnectStage, Rejected, SchemasPending
from keyfold_sink.validate.convert.avro_check import KEY_HEADER, VALUE_HEADER, AvroCheck
from keyfold_sink.validate.convert.columns import BatchId, ColumnCheck, ColumnFailure, Headers, NumberCheck, TextCheck
from keyfold_sink.validate.convert.connect_schema import Fit, SchemaInvalid, compile_fit
from keyfold_sink.validate.convert.json_check import EnvelopeCheck, JsonCheck, NotJson, OneSchemaCheck, parse
from keyfold_sink.validate.convert.registry_api import SchemaRegistry
from keyfold_sink.validate.convert.schemas import Schemas, SchemaTimings, registry_retry

_KEYS: Final = {ConnectStage.KEY_CONVERTER: "key.converter", ConnectStage.VALUE_CONVERTER: "value.converter"}


@dataclass(frozen=True, slots=True)
class ConvertedPart:
    """A part of records, Connect's name of its converter, and its check."""

    stage: ConnectStage
    converter: str
    check: ColumnCheck


class ConverterChecks:
    """See `Checks`."""

    def __init__(self, parts: Sequence[ConvertedPart]) -> None:
        self._parts = parts

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        """See `Checks.judge`."""
        if not len(batch):
            return ()
        batch_id = (topic, partition, batch.offsets[0], batch.offsets[-1], len(batch))
        rejected: dict[int, Rejected] = {}
        pending = False
        for part in self._parts:
            try:
                found = _failures(part, batch_id, batch)
            except SchemasPending:
                pending = True  # the other parts' schemas are requested at the same time
                continue
            for failure in found:
                fails = Rejected(failure.index, part.stage, part.converter, failure.cause, failure.message)
                rejected.setdefault(failure.index, fails)
        if pending:
            raise SchemasPending
        return [rejected[index] for index in sorted(rejected)]

    def pending(self) -> bool:
        """See `Checks.pending`."""
        waiting = [part.check.pending() for part in self._parts]  # no short cut: each call takes its answers
        return any(waiting)

    def close(self) -> None:
        """See `Checks.close`."""
        for part in self._parts:
            part.check.close()


class ConverterConfig(Protocol):
    """The options that are used here, see `keyfold_sink.config.option_groups.ConverterOptions`."""

    @property
    def key_converter(self) -> str: ...  # noqa: D102 - the class is documented as a whole
    @property
    def key_converter_settings(self) -> Mapping[str, str]: ...  # noqa: D102 - the class is documented as a whole
    @property
    def value_converter(self) -> str: ...  # noqa: D102 - the class is documented as a whole
    @property
    def value_converter_settings(self) -> Mapping[str, str]: ...  # noqa: D102 - the class is documented as a whole
    @property
    def header_converter(self) -> str: ...  # noqa: D102 - the class is documented as a whole
    @property
    def header_converter_settings(self) -> Mapping[str, str]: ...  # noqa: D102 - the class is documented as a whole
    @property
    def topics_dir(self) -> str: ...  # noqa: D102 - the class is documented as a whole
    @property
    def errors_retry_timeout_ms(self) -> int: ...  # noqa: D102 - the class is documented as a whole
    @property
    def errors_retry_delay_max_ms(self) -> int: ...  # noqa: D102 - the class is documented as a whole


def checks_of(
    options: ConverterConfig,
    *,
    store: ObjectStore,
    clock: Clock,
    random: Random,
    open_registry: Callable[[RegistrySettings], SchemaRegistry] | None = None,
    schema_timings: SchemaTimings | None = None,
) -> Checks | None:
    """Return the checks of a task, None if every converter is bytes. Raise `ConfigError`."""
    key = parse_converter("key.converter", options.key_converter, options.key_converter_settings)
    value = parse_converter("value.converter", options.value_converter, options.value_converter_settings)
    header = parse_header_converter("header.converter", options.header_converter, options.header_converter_settings)
    archive = SchemaArchive(store, options.topics_dir)
    asked: dict[str, Schemas] = {}

    def schemas(settings: RegistrySettings) -> Schemas:
        """Return the schemas of a registry, one object if keys and values use the same one."""
        same = repr(sorted(settings.client.items()))
        if same not in asked:
            registry = (open_registry or confluent_registry)(settings)
            asked[same] = Schemas(
                registry,
                archive,
                clock=clock,
                random=random,
                cache_size=settings.cache_size,
                retry=registry_retry(options.errors_retry_timeout_ms, options.errors_retry_delay_max_ms),
                timings=schema_timings,
            )
        return asked[same]

    parts: list[ConvertedPart] = []
    for stage, converter in (
        (ConnectStage.KEY_CONVERTER, key),
        (ConnectStage.VALUE_CONVERTER, value),
        (ConnectStage.HEADER_CONVERTER, header),
    ):
        check = _check_of(stage, converter, schemas)
        if check is not None:
            parts.append(ConvertedPart(stage, converter.class_name, check))
    return ConverterChecks(parts) if parts else None


def confluent_registry(settings: RegistrySettings) -> SchemaRegistry:
    """Open a registry with Confluent's client."""
    from keyfold_sink.validate.convert.registry import (
        ConfluentRegistry,  # loads an HTTP client, so only if it is needed
    )

    return ConfluentRegistry(settings)


def _check_of(
    stage: ConnectStage, converter: Converter, schemas: Callable[[RegistrySettings], Schemas]
) -> ColumnCheck | None:
    match converter:
        case BytesConverter():
            return None
        case StringConverter():
            return TextCheck()
        case NumberConverter():
            return NumberCheck(converter.size_bytes, is_boolean=converter.is_boolean)
        case JsonConverter():
            return _json_check(_KEYS.get(stage, "header.converter"), converter)
        case AvroConverter():
            header = KEY_HEADER if stage is ConnectStage.KEY_CONVERTER else VALUE_HEADER
            return AvroCheck(schemas(converter.registry), header)
        case _:
            assert_never(converter)


def _json_check(key: str, converter: JsonConverter) -> ColumnCheck:
    if not converter.schemas_enable:
        return JsonCheck()
    replace = converter.replace_null_with_default
    if not converter.schema_content:
        return EnvelopeCheck(replace_null_with_default=replace, cache_size=converter.cache_size)
    try:
        fit: Fit = compile_fit(parse(converter.schema_content.encode()), replace_null_with_default=replace)
    except (NotJson, SchemaInvalid) as error:
        raise ConfigError(f"{key}.schema.content", f"not a valid Connect schema: {error}") from error
    return OneSchemaCheck(fit)


def _failures(part: ConvertedPart, batch_id: BatchId, batch: RecordColumns) -> Sequence[ColumnFailure]:
    if part.stage is ConnectStage.KEY_CONVERTER:
        return part.check.failures(batch_id, batch.keys, batch.headers)
    if part.stage is ConnectStage.VALUE_CONVERTER:
        return part.check.failures(batch_id, batch.values, batch.headers)
    return _header_failures(part.check, batch_id, batch.headers)


def _header_failures(check: ColumnCheck, batch_id: BatchId, headers: Headers) -> Sequence[ColumnFailure]:
    """Check all headers of all records as one column; a record fails by its first header that fails."""
    flat = [(index, name, value) for index, pairs in enumerate(headers) if pairs for name, value in pairs]
    if not flat:
        return ()
    found: dict[int, ColumnFailure] = {}
    for failure in check.failures(batch_id, [value for _, _, value in flat], ()):
        index, name, _ = flat[failure.index]
        found.setdefault(index, ColumnFailure(index, failure.cause, f"header {name!r} {failure.message}"))
    return list(found.values())
