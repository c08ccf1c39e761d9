"""Helm's engine, built from source by Go once and kept in the cache; and keyfold's chart, rendered by it.

    template({"store": {"bucket": "log"}, ...}) -> the objects, as dicts
    template(VALUE_SETS / "eks.yaml")           -> the same of a documented set of values

Tests that use it carry `@pytest.mark.real`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from keyfold.errors import KeyfoldError
from tests.support.go_program import SOURCES, GoProgram, required_version

PROGRAM: Final = GoProgram("helm", required_version(SOURCES / "helm", "helm.sh/helm/v3"), SOURCES / "helm")
"""It knows the commands of its `main.go`; 2 min to build."""
CHART: Final = Path(__file__).parents[2] / "infra" / "helm" / "keyfold"
VALUE_SETS: Final = CHART / "ci"
# What a cluster of today offers; without a cluster Helm takes the version that it was built with.
KUBERNETES_VERSION: Final = "1.34"

Object = dict[str, Any]


def helm(command: str, values: Path | Mapping[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `template`, `notes` or `lint` for the chart."""
    with tempfile.TemporaryDirectory(prefix="keyfold-helm-") as folder:
        path = values if isinstance(values, Path) else Path(folder) / "values.json"
        if not isinstance(values, Path):
            path.write_text(json.dumps(values))
        name, *options = arguments or ("kf",)
        return subprocess.run(
            [str(PROGRAM.binary()), command, name, str(CHART), "--values", str(path), *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def template_text(
    values: Path | Mapping[str, Any], *, name: str = "kf", namespace: str = "keyfold", command: str = "template"
) -> str:
    """The rendered chart, its tests and hooks included, as YAML. Raises `KeyfoldError` with what Helm says."""
    answer = helm(command, values, name, "--namespace", namespace, "--kube-version", KUBERNETES_VERSION)
    if answer.returncode != 0:
        raise KeyfoldError(f"the chart does not render: {answer.stderr.strip()}")
    return answer.stdout


def template(values: Path | Mapping[str, Any], *, name: str = "kf", namespace: str = "keyfold") -> list[Object]:
    """The rendered chart as objects, its tests (annotation `helm.sh/hook: test`) among them."""
    if isinstance(values, Path):
        return [dict(each) for each in _rendered(values, name, namespace)]
    return _objects(template_text(values, name=name, namespace=namespace))


@cache
def _rendered(values: Path, name: str, namespace: str) -> tuple[Object, ...]:
    return tuple(_objects(template_text(values, name=name, namespace=namespace)))


def _objects(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def one(objects: Sequence[Object], kind: str, name: str) -> Object:
    """The object of that kind and name. Raises `KeyError`."""
    for each in objects:
        if each["kind"] == kind and each["metadata"]["name"] == name:
            return each
    there = sorted(f"{each['kind']}/{each['metadata']['name']}" for each in objects)
    raise KeyError(f"no {kind}/{name} among {there}")
