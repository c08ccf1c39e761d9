"""The documentation of the chart, and the files that it embeds, match the chart. Needs no Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support import chart_docs
from tests.support.helm import CHART, VALUE_SETS

SETS = sorted(VALUE_SETS.glob("*.yaml"))


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def test_the_readme_is_generated_from_the_values() -> None:
    assert chart_docs.README.read_text() == chart_docs.page(), "run `make docs`"


@pytest.mark.parametrize("copy", chart_docs.COPIES, ids=lambda path: path.name)
def test_embedded_files_match_their_originals(copy: Path) -> None:
    assert copy.read_bytes() == chart_docs.COPIES[copy].read_bytes(), "run `make docs`"


def test_every_value_has_a_comment() -> None:
    found = chart_docs.values()
    explained = [value.path for value in found if value.text]

    def is_covered(path: str) -> bool:
        return any(path == each or path.startswith(f"{each}.") for each in explained)

    assert [value.path for value in found if value.is_leaf and not is_covered(value.path)] == []


def test_the_default_values_match_the_schema() -> None:
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_has_every_default_value() -> None:
    known = set(_schema_paths(schema(), schema(), ""))
    given = {value.path for value in chart_docs.values()}
    missing = {path for path in given - known if not _is_free(path)}
    assert missing == set()


def test_every_object_of_the_schema_is_closed_or_a_map() -> None:
    for path, node in _objects(schema(), "$"):
        if "properties" in node:
            assert node.get("additionalProperties") is False, path


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_documented_set_of_values_matches_the_schema_and_has_a_purpose(path: Path) -> None:
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(path.read_text()))
    assert path.read_text().startswith("# ")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[2] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
    assert chart["version"] == chart["appVersion"]


def _is_free(path: str) -> bool:
    """Return whether a value is a map with keys of the user or of Kubernetes."""
    free = ("resources.", ".config.", "probes.", "labels.", "prometheusFrom", "updateStrategy.")
    return any(part in path for part in free)


def _schema_paths(node: dict[str, Any], root: dict[str, Any], prefix: str) -> Iterator[str]:
    if "$ref" in node:
        node = root["$defs"][node["$ref"].rsplit("/", 1)[1]]
    for name, each in node.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from _schema_paths(each, root, f"{prefix}{name}.")


def _objects(node: object, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if node.get("type") == "object" or ("properties" in node and isinstance(node.get("properties"), dict)):
            yield path, node
        for key, each in node.items():
            yield from _objects(each, f"{path}.{key}")
    elif isinstance(node, list):
        for each in node:
            yield from _objects(each, path)
