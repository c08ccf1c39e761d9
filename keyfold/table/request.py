"""The options of a table, and the properties in which it keeps them.

A table keeps its options, because rows of one table must all be read in one way. A later sync may leave them out, and
may not change them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from keyfold.errors import ConfigError
from keyfold.export.request import OnError
from keyfold.formats.avro_schema import Type
from keyfold.formats.decoder import reader_type
from keyfold.formats.format import Format, RecordPart
from keyfold.table.columns import PartFormat, TextPaths
from keyfold.table.partitioning import parse_columns

PREFIX: Final = "keyfold."
_TEXTS: Final = f"{PREFIX}json-text"
_HOLLOW: Final = f"{PREFIX}hollow"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """How records become rows. `rebuild` replaces all rows; `parallel` partitions are read at the same time.

    `key_reader_schema` and `reader_schema` are Avro schemas to read all keys and values with, as JSON; empty: none.
    `partition_by` are columns and transforms of them (`keyfold.table.partitioning`).
    """

    key_format: Format = Format.BYTES
    value_format: Format = Format.BYTES
    key_reader_schema: str = ""
    reader_schema: str = ""
    on_error: OnError = OnError.FAIL
    headers: bool = False
    partition_by: str = "partition"
    rebuild: bool = False
    parallel: int = 2

    def part(self, part: RecordPart) -> PartFormat:
        """Return how to read the keys or the values."""
        if part is RecordPart.KEY:
            return PartFormat(part, self.key_format, _reader(self.key_reader_schema))
        return PartFormat(part, self.value_format, _reader(self.reader_schema))

    def again(self) -> TableRequest:
        """Return the request of the syncs that follow a first one."""
        return replace(self, rebuild=False)

    @property
    def has_key_bytes(self) -> bool:
        """Whether the table has a column of the keys' bytes: needed where the column `key` does not have them all."""
        return self.key_format is not Format.BYTES and not (
            self.key_format is Format.STRING and self.on_error is OnError.FAIL
        )

    @property
    def key_column(self) -> str:
        """The column that has the keys' bytes."""
        return "key_bytes" if self.has_key_bytes else "key"

    def properties(self, topic: str) -> dict[str, str]:
        """Return the table's properties. Raises `ConfigError` if `partition_by` is not understood."""
        return {
            f"{PREFIX}topic": topic,
            f"{PREFIX}key-format": self.key_format.value,
            f"{PREFIX}value-format": self.value_format.value,
            f"{PREFIX}on-error": self.on_error.value,
            f"{PREFIX}headers": str(self.headers).lower(),
            f"{PREFIX}partition-by": ", ".join(map(str, parse_columns(self.partition_by))),
            f"{PREFIX}key-reader-schema": self.key_reader_schema,
            f"{PREFIX}reader-schema": self.reader_schema,
        }


def _reader(schema: str) -> Type | None:
    return reader_type(schema) if schema else None


def topic_of(properties: Mapping[str, str], name: str) -> str:
    """Return the topic that a table was made from. Raises `ConfigError` if keyfold did not make it."""
    try:
        return properties[f"{PREFIX}topic"]
    except KeyError as error:
        raise _foreign(name) from error


def request_of(properties: Mapping[str, str], name: str) -> TableRequest:
    """Return the options that a table was made with. Raises `ConfigError` if keyfold did not make it."""
    try:
        return TableRequest(
            key_format=Format(properties[f"{PREFIX}key-format"]),
            value_format=Format(properties[f"{PREFIX}value-format"]),
            key_reader_schema=properties[f"{PREFIX}key-reader-schema"],
            reader_schema=properties[f"{PREFIX}reader-schema"],
            on_error=OnError(properties[f"{PREFIX}on-error"]),
            headers=properties[f"{PREFIX}headers"] == "true",
            partition_by=properties[f"{PREFIX}partition-by"],
        )
    except (KeyError, ValueError) as error:
        raise _foreign(name) from error


def _foreign(name: str) -> ConfigError:
    return ConfigError("TABLE", f"`{name}` is a table that keyfold did not make", hint="name a new table")


def require_same(properties: Mapping[str, str], request: TableRequest, topic: str, name: str) -> None:
    """Raise `ConfigError` if a table was made from another topic, or with other options."""
    for key, wanted in request.properties(topic).items():
        found = properties.get(key)
        if found is None:
            raise _foreign(name)
        if found != wanted:
            option = key.removeprefix(PREFIX)
            told = f"another {option}" if option.endswith("-schema") else f"{option} `{found}`, not `{wanted}`"
            raise ConfigError(
                f"--{option}",
                f"`{name}` was made with {told}",
                hint="use the same, or drop the table first with `keyfold table drop`",
            )


def text_paths(properties: Mapping[str, str]) -> TextPaths:
    """Return the places of a table that hold JSON as text."""
    return _paths(properties, _TEXTS)


def hollow_paths(properties: Mapping[str, str]) -> TextPaths:
    """Return the places that have no column, because their lists and objects have all been empty so far."""
    return _paths(properties, _HOLLOW)


def _paths(properties: Mapping[str, str], name: str) -> TextPaths:
    return frozenset(tuple(path) for path in json.loads(properties.get(name, "[]")))


def path_properties(properties: Mapping[str, str], texts: TextPaths, hollow: TextPaths) -> dict[str, str]:
    """Return the properties that keep these places, of which only what has changed."""
    kept = {_TEXTS: json.dumps(sorted(texts)), _HOLLOW: json.dumps(sorted(hollow))}
    return {name: text for name, text in kept.items() if properties.get(name, "[]") != text}
