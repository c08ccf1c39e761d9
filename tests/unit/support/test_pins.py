"""requirements/ has a hash for each installed file, and the versions of constraints.txt."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.pins import (
    BUILD,
    CONSTRAINTS,
    FOLDER,
    ROOT,
    SETS,
    SITE,
    TOOLS,
    Pin,
    constraints,
    disagreements,
    parse,
)

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
NAMES = ("build", "tools", "site", "browser", *SETS)


def pins_of(name: str) -> dict[Pin, int]:
    return dict(parse((FOLDER / f"{name}.txt").read_text(encoding="utf-8")))


def test_the_requirement_files_match_make_pins() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}.txt" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_each_requirement_has_hashes_and_nothing_else(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    pins = pins_of(name)
    assert pins
    assert [pin for pin, hashes in pins.items() if hashes == 0] == []
    assert re.findall(r"://|--(?!hash=sha256:)\S+|@", text) == []


def test_versions_are_those_of_constraints() -> None:
    files = {f"requirements/{name}.txt": pins_of(name) for name in NAMES}
    assert list(disagreements(constraints(), files)) == []


def test_requested_packages_are_pinned() -> None:
    assert set(BUILD) <= {pin.name for pin in pins_of("build")}
    assert set(TOOLS) <= {pin.name for pin in pins_of("tools")}
    assert set(SITE) <= {pin.name for pin in pins_of("site")}
    assert set(pins_of("sink")) | set(pins_of("spark")) <= set(pins_of("dev"))


@pytest.mark.parametrize("name", SETS)
def test_dependencies_of_the_project_are_pinned(name: str) -> None:
    there = {pin.name: pin.version for pin in pins_of(name)}
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in SETS[name].extras for line in of_extra(extra)),
        *of_group(SETS[name].group),
    ]
    needed = [Requirement(line) for line in lines]
    assert {canonicalize_name(one.name) for one in needed} <= set(there)
    assert [str(one) for one in needed if not one.specifier.contains(there[canonicalize_name(one.name)])] == []


def test_the_build_is_pinned() -> None:
    needed = {canonicalize_name(Requirement(line).name) for line in PYPROJECT["build-system"]["requires"]}
    assert needed <= set(BUILD)


def of_extra(name: str) -> Iterator[str]:
    for line in PROJECT["optional-dependencies"][name] if name else ():
        own = Requirement(line)
        if own.name == PROJECT["name"]:
            for extra in own.extras:
                yield from of_extra(extra)
        else:
            yield line


def of_group(name: str) -> Iterator[str]:
    for entry in PYPROJECT["dependency-groups"][name] if name else ():
        if isinstance(entry, str):
            yield entry
        else:
            yield from of_group(entry["include-group"])


def test_a_disagreement_gives_a_hint() -> None:
    files = {"requirements/a.txt": [Pin("one", "1"), Pin("two", "2"), Pin("new", "1")]}
    assert list(disagreements([Pin("one", "1"), Pin("two", "3"), Pin("old", "1")], files)) == [
        "requirements/a.txt: two==2, but constraints.txt has two==3; run `make pins`",
        "requirements/a.txt: new==1 is not in constraints.txt; add it there",
        "constraints.txt: old==1 is in no file of requirements/; run `make pins`, or remove it",
    ]


HASH = "    --hash=sha256:" + "0" * 64


@pytest.mark.parametrize(
    "text",
    [
        "one==1\n",
        f"one>=1 \\\n{HASH}\n",
        f"one==1 \\\n{HASH} \\\n",
        f"{HASH}\n",
        f"--index-url=here\none==1 \\\n{HASH}\n",
        f"one==1 \\\n{HASH[:-1]}\n",
        f"one @ file:here \\\n{HASH}\n",
        f"one==1 \\\n# two\n{HASH}\n",
    ],
)
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        list(parse(text))


def test_every_installation_requires_hashes() -> None:
    """Each `pip install` of the Makefile and the Dockerfiles uses hashes or local files."""
    texts = [ROOT / "Makefile", *(ROOT / "infra" / "images").glob("*/Dockerfile")]
    commands = [
        command
        for file in texts
        for command in re.findall(r"-m pip\b.*?(?<!\\)\n", file.read_text(encoding="utf-8"), re.DOTALL)
        if re.search(r"\b(install|wheel)\b(?!\w)", command) and "uninstall" not in command
    ]
    loose = [each for each in commands if not re.search(r"--require-hashes|--no-index|--no-deps", each)]
    assert [each.strip() for each in loose] == [
        "-m pip install --quiet --no-build-isolation pyspark==$(SPARK)"  # any version, as whoever calls it asks
    ]
    assert [each for each in commands if "--no-index" not in each and "--no-build-isolation" not in each] == []


def test_constraints_are_in_order() -> None:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(lines, key=lambda line: line.lower().replace("=", "!"))


def test_every_requirements_file_of_the_makefile_exists() -> None:
    for name in re.findall(r"requirements/\w+\.txt", (ROOT / "Makefile").read_text(encoding="utf-8")):
        assert (ROOT / Path(name)).is_file(), name
