"""Parse which converter a configuration names, and its settings; pure, and cheap to import with the options.

    value.converter=io.confluent.connect.avro.AvroConverter
    value.converter.schema.registry.url=https://registry:8081

Names are Connect's classes, its aliases of them (JsonConverter, Json), and the short names bytes, string, json, avro.
If Connect's default would surprise users of the short name, the class has Connect's default and the short name the
plain one: `schemas.enable` is true for JsonConverter and false for json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from keyfold.errors import ConfigError
from keyfold.formats.format import FORMAT_NAMES, FORMATS, Format
from keyfold_sink.config.registry_settings import AVRO_KEYS, RegistrySettings, parse_registry

BYTES_CLASS: Final = FORMATS[Format.BYTES].converter_class
STRING_CLASS: Final = FORMATS[Format.STRING].converter_class
JSON_CLASS: Final = FORMATS[Format.JSON].converter_class
AVRO_CLASS: Final = FORMATS[Format.AVRO].converter_class
SIMPLE_HEADER_CLASS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"

_NUMBER_PACKAGE: Final = "org.apache.kafka.connect.converters."
_NUMBER_BYTES: Final = {
    "BooleanConverter": 1,
    "ShortConverter": 2,
    "IntegerConverter": 4,
    "FloatConverter": 4,
    "LongConverter": 8,
    "DoubleConverter": 8,
}
_SHORT_NAMES: Final = {info.format.value: info.converter_class for info in FORMATS.values()}
_CLASSES: Final = (
    *_SHORT_NAMES.values(),
    *(_NUMBER_PACKAGE + name for name in _NUMBER_BYTES),
)
_UTF8: Final = ("utf-8", "utf8")
_CACHE_SIZE: Final = 1000
# Connect ignores unknown settings of a converter, and configurations set this key for all converters.
_EVERYWHERE: Final = "schemas.enable"
_OTHERS: Final = {
    "io.confluent.connect.json.JsonSchemaConverter": "JSON Schema by id is not checked",
    "io.confluent.connect.protobuf.ProtobufConverter": "Protobuf is not checked",
}


@dataclass(frozen=True, slots=True)
class BytesConverter:
    """No validation: every record passes."""

    class_name: str = BYTES_CLASS


@dataclass(frozen=True, slots=True)
class StringConverter:
    """UTF-8."""

    class_name: str = STRING_CLASS


@dataclass(frozen=True, slots=True)
class NumberConverter:
    """A fixed number of bytes; for a boolean also 0 or 1."""

    class_name: str
    size_bytes: int

    @property
    def is_boolean(self) -> bool:
        """Whether only the bytes 0 and 1 are valid."""
        return self.class_name.endswith(".BooleanConverter")


@dataclass(frozen=True, slots=True)
class JsonConverter:
    """JSON; with `schemas_enable` in Connect's envelope, or with the one schema in `schema_content`."""

    schemas_enable: bool
    replace_null_with_default: bool = True
    schema_content: str = ""
    cache_size: int = _CACHE_SIZE
    class_name: str = JSON_CLASS


@dataclass(frozen=True, slots=True)
class AvroConverter:
    """Avro with its schema's id before the data or in a header, as Confluent's serializers write it."""

    registry: RegistrySettings
    class_name: str = AVRO_CLASS


Converter = BytesConverter | StringConverter | NumberConverter | JsonConverter | AvroConverter


def parse_converter(key: str, name: str, settings: Mapping[str, str]) -> Converter:
    """Parse the converter that `key` (key.converter, value.converter) names; `settings` are without that prefix.

    Raise `ConfigError`, which names the wrong key and never shows a value that may be a secret.
    """
    class_name = _class_name(key, name)
    if class_name == STRING_CLASS:
        return _string(key, settings)
    if class_name == JSON_CLASS:
        return _json(key, settings, plain=name == "json")
    if class_name == AVRO_CLASS:
        return AvroConverter(parse_registry(key, settings))
    _require_known(key, settings, ())
    if class_name == BYTES_CLASS:
        return BytesConverter()
    return NumberConverter(class_name, _NUMBER_BYTES[class_name.rpartition(".")[2]])


def parse_header_converter(key: str, name: str, settings: Mapping[str, str]) -> Converter:
    """Parse the header converter. Connect's SimpleHeaderConverter accepts anything, like bytes. Raise `ConfigError`."""
    if name in {SIMPLE_HEADER_CLASS, "SimpleHeaderConverter", "simple"}:
        return BytesConverter()
    if _class_name(key, name) == AVRO_CLASS:
        raise ConfigError(key, "must not be avro, because Connect has no Avro converter for headers", hint="use bytes")
    return parse_converter(key, name, settings)


def _class_name(key: str, name: str) -> str:
    for class_name in _CLASSES:
        simple = class_name.rpartition(".")[2]
        if name in {class_name, simple, simple.removesuffix("Converter")}:
            return class_name
    if name in _SHORT_NAMES:
        return _SHORT_NAMES[name]
    other = next((why for other, why in _OTHERS.items() if name in {other, other.rpartition(".")[2]}), None)
    raise ConfigError(
        key,
        f"unknown converter {name!r}" + (f": {other}" if other else ""),
        hint="use bytes, which accepts everything (the log keeps the original bytes with every converter), or one of "
        + ", ".join([*FORMAT_NAMES[1:], *sorted(_NUMBER_BYTES)]),
    )


def _string(key: str, settings: Mapping[str, str]) -> StringConverter:
    encodings = ("converter.encoding", "encoding", "deserializer.encoding")
    _require_known(key, settings, encodings)
    for own in encodings:
        if own in settings and settings[own].strip().lower() not in _UTF8:
            raise ConfigError(
                f"{key}.{own}",
                f"must be UTF-8, not {settings[own]!r}; readers decode text in a log as UTF-8",
                hint="use bytes for text in another encoding",
            )
    return StringConverter()


def _json(key: str, settings: Mapping[str, str], *, plain: bool) -> JsonConverter:
    _require_known(
        key,
        settings,
        ("schemas.enable", "schemas.cache.size", "decimal.format", "replace.null.with.default", "schema.content"),
    )
    decimal_format = settings.get("decimal.format", "BASE64")
    if decimal_format.upper() not in {"BASE64", "NUMERIC"}:
        raise ConfigError(f"{key}.decimal.format", f"must be BASE64 or NUMERIC, not {decimal_format!r}")
    converter = JsonConverter(
        schemas_enable=_flag(key, settings, "schemas.enable", default=not plain),
        replace_null_with_default=_flag(key, settings, "replace.null.with.default", default=True),
        schema_content=settings.get("schema.content", ""),
        cache_size=_count(key, settings, "schemas.cache.size", _CACHE_SIZE),
    )
    if converter.schema_content and not converter.schemas_enable:
        raise ConfigError(f"{key}.schema.content", "requires schemas.enable=true")
    return converter


def _flag(key: str, settings: Mapping[str, str], own: str, *, default: bool) -> bool:
    text = settings.get(own, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{key}.{own}", f"must be true or false, not {settings[own]!r}")
    return text == "true"


def _count(key: str, settings: Mapping[str, str], own: str, default: int) -> int:
    text = settings.get(own, str(default)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{key}.{own}", f"must be a number of at least 1, not {settings[own]!r}")
    return int(text)


def _require_known(key: str, settings: Mapping[str, str], known: tuple[str, ...]) -> None:
    for own in settings:
        if own not in known and own != _EVERYWHERE:
            near = get_close_matches(own, known, n=1)
            is_avro = own in AVRO_KEYS or own.startswith("schema.registry.")
            hint = f"did you mean `{key}.{near[0]}`?" if near else "it is a setting of avro" if is_avro else None
            raise ConfigError(f"{key}.{own}", "unknown setting of this converter", hint=hint)
