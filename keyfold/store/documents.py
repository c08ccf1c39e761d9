"""Parsers for small JSON objects from a bucket, whose contents are not trusted.

load_json          any JSON within bounds
decode_document    JSON as a value of a dataclass, whose fields have the types that they are declared with
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from keyfold.errors import StoreError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit above every document that keyfold writes. The longest is a replica's status, with a line per partition."""
_SHOWN: Final = 120


class DocumentUnreadable(StoreError):
    """A document exists and does not have the expected content."""


def load_json(data: bytes | str) -> Any:
    """Read JSON. Raise `ValueError` for other text, and for JSON that is too long, too deep or has infinite numbers.

    Integers have at most 64 bits, so that calculations with them cannot overflow.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"it has {len(data)} bytes; the limit for this kind of object is {DOCUMENT_BYTES_MAX}")
    try:
        return json.loads(data, parse_int=_long, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


def _long(text: str) -> int:
    number = int(text)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{text[:_SHOWN]} has more than 64 bits")
    return number


def decode_document(kind: type[T], data: bytes | str) -> T:
    """Read JSON as a value of the dataclass `kind`. Unknown fields are ignored.

    Raise a `ValueError` that names the field if it is missing or has another type, and where `load_json` does.
    """
    from pydantic import ValidationError

    load_json(data)
    try:
        key: Any = kind
        adapter: TypeAdapter[T] = _adapter(key)
        return adapter.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"`{where[:_SHOWN]}`: {first['msg']}" if where else first["msg"]) from error


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # slow to import: it takes longer than most commands

    return TypeAdapter(kind)
