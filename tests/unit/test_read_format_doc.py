"""docs/format.md names every field, column and finding that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from keyfold.log.index import ROWS, BlockTable
from keyfold.read.findings import Kind
from keyfold_schemas import schema_text

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def field_names(schema: Any) -> set[str]:
    """Names of all fields in a schema, nested ones too."""
    if isinstance(schema, list):
        return set().union(*map(field_names, schema))
    if not isinstance(schema, dict):
        return set()
    names = {field["name"] for field in schema.get("fields", ())}
    inner = [field["type"] for field in schema.get("fields", ())] + [schema.get("items"), schema.get("type")]
    return names.union(*map(field_names, inner))


def test_every_field_column_and_finding_is_described() -> None:
    told = set(re.findall(r"`([a-z0-9_.-]+)`", PAGE.read_text()))
    for name in ("record", "manifest"):
        assert field_names(json.loads(schema_text(name, 1))) <= told
    assert {*ROWS.names, *BlockTable.__slots__} <= told
    assert {kind.value for kind in Kind} <= told
