"""Small JSON objects out of a bucket, read without trust."""

from __future__ import annotations

import json
import math
from typing import Any, Final

DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""More than keyfold writes into any: the longest is the status of a replica, with a line for each partition."""


def load_json(data: bytes | str) -> Any:
    """Read JSON. Raise `ValueError` for anything else, and where it is too long or too deep, or has endless numbers."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes are more than the {DOCUMENT_BYTES_MAX} that such an object may have")
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number
