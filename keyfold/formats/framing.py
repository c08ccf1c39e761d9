"""Where Confluent's serializers say which schema bytes were written by.

    in the key or value      0 and the id in 4 bytes, or 1 and the GUID in 16, then the data
    in a header              the same 5 or 17 bytes in `__value_schema_id` or `__key_schema_id`; the value is all data

A header wins over what is before the data. Several headers of the name must agree.

The data is Avro's binary encoding but for one case: bytes by a schema that is nothing but `bytes` have no length before
them. `AbstractKafkaAvroSerializer` writes them as they are; `AbstractKafkaAvroDeserializer` takes all that is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from keyfold.formats.format_mismatch import Misfit, SchemaKey
from keyfold.log.record import Header

ID_BYTES: Final = 5
GUID_BYTES: Final = 17

_ID: Final = b"\0"
_GUID: Final = b"\1"


def head_of(data: bytes) -> bytes:
    """As many of the first bytes as may say the schema."""
    return data[:GUID_BYTES] if data[:1] == _GUID else data[:ID_BYTES]


def read_head(head: bytes) -> tuple[SchemaKey, int]:
    """The schema that the first bytes name, and where the data begins. Raises `Misfit`."""
    if head[:1] == _ID and len(head) >= ID_BYTES:
        return int.from_bytes(head[1:ID_BYTES]), ID_BYTES
    if head[:1] == _GUID and len(head) >= GUID_BYTES:
        return str(UUID(bytes=head[1:GUID_BYTES])), GUID_BYTES
    if head[:1] in {_ID, _GUID}:
        raise Misfit(f"has {len(head)} bytes, too few for a schema id")
    what = f"begins with byte {head[0]}" if head else "is empty"
    raise Misfit(f"{what}; Confluent's serializers start with byte 0 and a schema id")


def is_bytes_alone(schema: Any) -> bool:
    """Whether data by a schema, given as JSON, is bytes without a length; a logical type makes no difference."""
    return schema == "bytes" or (isinstance(schema, dict) and is_bytes_alone(schema.get("type")))


def read_frame(data: bytes, headers: Iterable[Header], name: str) -> tuple[SchemaKey, int]:
    """The schema of `data`, and where its data begins; `name` is the header that may say it. Raises `Misfit`."""
    ids = {value for header, value in headers if header == name and value is not None}
    if not ids:
        return read_head(head_of(data))
    if len(ids) > 1:
        raise Misfit(f"has {len(ids)} different headers {name}")
    (head,) = ids
    try:
        key, end = read_head(head)
    except Misfit as error:
        raise Misfit(f"has a header {name} without a schema id: the header {error.message}") from error
    if end != len(head):
        raise Misfit(f"has a header {name} with {len(head) - end} bytes after the schema id")
    return key, 0
