"""Where Confluent's serializers say which schema bytes were written by.

    in the key or value      0 and the id in 4 bytes, or 1 and the GUID in 16, then the data
    in a header              the same 5 or 17 bytes in `__value_schema_id` or `__key_schema_id`; the value is all data

A header wins over what is before the data. Several headers of the name must agree.

The data is Avro's binary encoding but for one case: bytes by a schema that is nothing but `bytes` have no length before
them. `AbstractKafkaAvroSerializer` writes them as they are; `AbstractKafkaAvroDeserializer` takes all that is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.log.record import Header

ID_BYTES: Final = 5
GUID_BYTES: Final = 17

_ID: Final = b"\0"
_GUID: Final = b"\1"


class NoSchemaId(FormatMismatch):
    """Bytes that do not begin with a schema id. `start` describes their beginning.

    `has_magic_byte` is true if the first byte announces an id, and the bytes end too early.
    """

    def __init__(self, head: bytes) -> None:
        self.has_magic_byte = head[:1] in {_ID, _GUID}
        self.start = f"begins with byte {head[0]}" if head else "is empty"
        if self.has_magic_byte:
            super().__init__(f"has {len(head)} bytes, too few for a schema id")
        else:
            super().__init__(f"{self.start}; Confluent's serializers start with byte 0 and a schema id")


def has_guid(data: bytes) -> bool:
    """Whether the first byte announces a GUID."""
    return data[:1] == _GUID


def head_of(data: bytes) -> bytes:
    """Return as many of the first bytes as may name the schema."""
    return data[:GUID_BYTES] if has_guid(data) else data[:ID_BYTES]


def read_head(head: bytes) -> tuple[SchemaKey, int]:
    """Return the schema that the first bytes name, and where the data begins. Raise `NoSchemaId`."""
    if head[:1] == _ID and len(head) >= ID_BYTES:
        return int.from_bytes(head[1:ID_BYTES]), ID_BYTES
    if head[:1] == _GUID and len(head) >= GUID_BYTES:
        return str(UUID(bytes=head[1:GUID_BYTES])), GUID_BYTES
    raise NoSchemaId(head)


def is_bytes_alone(schema: object) -> bool:
    """Whether data by a schema, given as JSON, is bytes without a length; a logical type makes no difference."""
    return schema == "bytes" or (isinstance(schema, dict) and is_bytes_alone(schema.get("type")))


def read_frame(data: bytes, headers: Iterable[Header], name: str) -> tuple[SchemaKey, int]:
    """Return the schema of `data` (`name` is the header that may name it) and where the data begins.

    Raise `FormatMismatch`.
    """
    ids = {value for header, value in headers if header == name and value is not None}
    if not ids:
        return read_head(head_of(data))
    if len(ids) > 1:
        raise FormatMismatch(f"has {len(ids)} different headers {name}")
    (head,) = ids
    try:
        key, end = read_head(head)
    except FormatMismatch as error:
        raise FormatMismatch(f"has a header {name} without a schema id: the header {error.message}") from error
    if end != len(head):
        raise FormatMismatch(f"has a header {name} with {len(head) - end} bytes after the schema id")
    return key, 0
