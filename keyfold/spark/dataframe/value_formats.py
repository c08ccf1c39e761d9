"""Formats of key and value columns, and replacements for values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column, types
from pyspark.sql import functions as fn

from keyfold.errors import ConfigError
from keyfold.formats.format import FORMAT_NAMES, FORMATS_WITH_SCHEMA, FormatName

Mode = Literal["FAILFAST", "PERMISSIVE"]
ReaderSchema = str | Mapping[str, object] | types.DataType | None
"""An Avro schema as JSON text or parsed; for json a Spark type or its DDL."""

MODES: Final = ("FAILFAST", "PERMISSIVE")


@dataclass(frozen=True, eq=False)
class Typing:
    """The format of one column, `key` or `value`. Raises `ConfigError` for invalid combinations."""

    column: Literal["key", "value"]
    format: FormatName = "bytes"
    reader_schema: ReaderSchema = None
    mode: Mode = "FAILFAST"

    def __post_init__(self) -> None:
        if self.format not in FORMAT_NAMES:
            raise ConfigError(f"{self.column}_format", f"must be one of {', '.join(FORMAT_NAMES)}, not {self.format!r}")
        if self.mode not in MODES:
            raise ConfigError("mode", f"must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.reader_schema is not None and self.format not in FORMATS_WITH_SCHEMA:
            raise ConfigError(self.schema_option, f"cannot be used with {self.column}_format {self.format!r}")
        if self.format == "json" and self.reader_schema is None and not hasattr(fn, "try_parse_json"):
            raise ConfigError(
                self.schema_option,
                "is required for json: this Spark has no variant type, and keyfold does not infer types from the data",
                hint='use a DDL such as "id long, name string"',
            )

    @property
    def schema_option(self) -> str:
        """Name of the argument with this column's reader schema."""
        return "reader_schema" if self.column == "value" else "key_reader_schema"

    @property
    def raises(self) -> bool:
        """Whether a value that does not fit fails the job."""
        return self.mode == "FAILFAST"


def mismatch(typing: Typing, topic: str, what: str | Column) -> Column:
    """Return the replacement of a value that does not fit: an error that names the record, or null."""
    if not typing.raises:
        return fn.lit(None)
    told = fn.lit(what) if isinstance(what, str) else what
    place = fn.concat(fn.lit(f"{topic}-"), fn.col("partition"), fn.lit(" offset "), fn.col("offset"))
    return fn.raise_error(fn.concat(place, fn.lit(f": the {typing.column} "), told))
