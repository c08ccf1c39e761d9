"""The types of JSON: `JsonValue` is any value, `JsonObject` an object that is built here.

JSON from elsewhere is `object` until its type has been looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"
