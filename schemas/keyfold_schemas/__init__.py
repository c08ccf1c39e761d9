"""The Avro schemas of everything that keyfold stores: one `.avsc` file a name and version, never edited once released.

A newer version of a schema is a new file. What a file was written with is in the file itself (Avro object containers
carry their schema), so these are for writing and for checking.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["load_schema", "schema_text"]


@cache
def schema_text(name: str, version: int) -> str:
    """The text of `<name>-<version>.avsc`. Raises FileNotFoundError."""
    return resources.files(__name__).joinpath(f"{name}-{version}.avsc").read_text(encoding="utf-8")


@cache
def _parsed(name: str, version: int) -> Any:
    return json.loads(schema_text(name, version))


def load_schema(name: str, version: int) -> Any:
    """The schema as a JSON value of the caller's own."""
    return deepcopy(_parsed(name, version))
