"""Short builders of Avro schemas."""

from __future__ import annotations

import json
from typing import Any

from keyfold.formats.schema_archive import SchemaArchive
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore

Json = Any


def record(called: str, **fields: Json) -> Json:
    return {"type": "record", "name": called, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def logical(kind: str, meaning: str, **more: Any) -> Json:
    return {"type": kind, "logicalType": meaning, **more}


def decimal(precision: int, scale: int) -> Json:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def kept(*schemas: Json) -> SchemaArchive:
    """Store these schemas beside a log, with the ids 1, 2, ..."""
    store = MemoryStore()
    for number, schema in enumerate(schemas, 1):
        store.put(f"topics/_schemas/{number}.avsc", json.dumps(schema).encode(), Create())
    return SchemaArchive(store, "topics")
