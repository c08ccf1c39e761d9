"""The schemas of everything that keyfold stores as Avro, one `.avsc` file a version, and how to load them.

A file is never changed once a release wrote with it: a new version is a new file. Nothing here knows what the fields
mean; that is said in each schema's `doc`s and in the module that writes it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def schema_text(name: str, version: int) -> str:
    """The schema `<name>-<version>.avsc` without needless white space, as it is written into file headers.

    Raises `LookupError` where this release has no such schema.
    """
    source = files(__name__).joinpath(f"{name}-{version}.avsc")
    if not source.is_file():
        raise LookupError(f"no schema {name} of version {version}")
    return json.dumps(json.loads(source.read_text(encoding="utf-8")), separators=(",", ":"))


def load_schema(name: str, version: int) -> dict[str, Any]:
    """The schema as a fresh structure, to be given to fastavro. Raises `LookupError` as `schema_text` does."""
    schema: dict[str, Any] = json.loads(schema_text(name, version))
    return schema
