"""The published package: its description reads anywhere, its metadata is true, and extras are what is checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.bare_install import LIBRARIES_OF_EXTRAS
from tests.support.pythons import supported
from tests.support.root import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def metadata() -> Any:
    """Return what the build writes into the package."""
    done = subprocess.run([sys.executable, "-m", "hatchling", "metadata"], cwd=ROOT, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_the_description_has_no_link_that_only_the_repository_has(metadata: Any) -> None:
    text = metadata["readme"]["text"]
    targets = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"(?:href|src)=[\"']([^\"']*)", text)
    assert [target for target in targets if not target.startswith(("https://", "http://"))] == []
    assert "![" not in text
    assert "getting-started (`docs/getting-started.md`)" in text
    assert (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[0] == text.partition("\n")[0]


def test_the_files_that_the_description_names_are_in_the_source_distribution(metadata: Any) -> None:
    named = set(re.findall(r"\(`([^`]+)`\)", metadata["readme"]["text"]))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [name for name in named if not name.startswith("docs/") and "/" in name] == []
    assert {"/docs", "/*.md"} <= set(included)


def test_nothing_is_invented(metadata: Any) -> None:
    assert {"urls", "authors", "maintainers"}.isdisjoint(metadata)


def test_the_supported_pythons_are_the_same_everywhere(metadata: Any) -> None:
    versions = supported()
    assert len(versions) > 1
    assert versions == [f"3.{minor}" for minor in range(int(versions[0][2:]), int(versions[0][2:]) + len(versions))]
    oldest = SpecifierSet(metadata["requires-python"])
    assert all(version in oldest for version in versions)
    assert f"3.{int(versions[0][2:]) - 1}" not in oldest
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {versions[0]} to {versions[-1]} on Linux" in readme


def test_what_developers_need_is_no_extra(metadata: Any) -> None:
    assert set(metadata["optional-dependencies"]) == {"kafka", "serve", "sink", "spark", "table", "demo", "all"}
    assert "dev" in PYPROJECT["dependency-groups"]


def test_the_libraries_of_the_extras_are_hidden_where_a_bare_installation_is_tested() -> None:
    def names(lines: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(line).name) for line in lines}

    project = PYPROJECT["project"]
    optional = set().union(*(names(lines) for lines in project["optional-dependencies"].values()))
    only_extras = optional - names(project["dependencies"]) - {"keyfold"}
    modules = {
        module
        for module, distributions in packages_distributions().items()
        if not module.startswith("_") and {canonicalize_name(name) for name in distributions} <= only_extras
    }
    assert modules <= set(LIBRARIES_OF_EXTRAS)
