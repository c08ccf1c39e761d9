"""Kubernetes' own schemas of its objects, from `kubernetes-validate`; no unknown field passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource


def validate(each: Mapping[str, Any], version: str) -> None:
    """Raise `jsonschema.ValidationError` for an invalid object of this version, `KeyError` for an unknown kind."""
    group, _, name = each["apiVersion"].rpartition("/")
    parts = [each["kind"].lower(), *([group.split(".")[0]] if group else []), name]
    _validator(version, "-".join(parts)).validate(each)


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    try:
        schema = _read(version, name)
    except FileNotFoundError:
        raise KeyError(f"Kubernetes {version} has no {name}") from None
    return Draft202012Validator(schema, registry=_definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    return Resource.from_contents(_read(version, "_definitions")) @ Registry()


def _read(version: str, name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return json.loads((folder / f"{name}.json").read_text())
