"""A key or value that is not of the format or schema that it is read by.

`FormatMismatch` is about bytes and does not know where they were. `RecordFormatMismatch` is about a record of a log:
its message names topic, partition, offset and schema.
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError, LogError
from keyfold.formats.format import RecordPart

SchemaKey = int | str
"""The id of a schema, or its GUID in its canonical form (lower case, with hyphens)."""


class FormatMismatch(KeyfoldError):
    """Bytes that are not of their format; `schema` is the writer schema that they name, where they name one."""

    def __init__(self, message: str, *, schema: SchemaKey | None = None) -> None:
        super().__init__(message)
        self.schema = schema


class Unsuited(Exception):
    """A schema, or some data, that is better read one value at a time."""


class RecordFormatMismatch(LogError):
    """A record's key or value is not of its format. `offset` says which record, `schema` which writer schema."""

    def __init__(
        self,
        topic: str,
        partition: int,
        message: str,
        *,
        offset: int,
        part: RecordPart,
        schema: SchemaKey | None,
        hint: str,
    ) -> None:
        super().__init__(topic, partition, message, hint=hint)
        self.offset = offset
        self.part = part
        self.schema = schema


def mismatch_at(
    topic: str, partition: int, offset: int, part: RecordPart, mismatch: FormatMismatch, *, hint: str
) -> RecordFormatMismatch:
    """Return the error of a record for the error of its bytes."""
    message = f"the {part.value} at offset {offset} {mismatch.message}"
    return RecordFormatMismatch(topic, partition, message, offset=offset, part=part, schema=mismatch.schema, hint=hint)
