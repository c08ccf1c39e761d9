"""`make pins`: write requirements/*.txt, which have the SHA-256 of every file that an installation may take.

    constraints.txt      the versions, edited by people
    requirements/*.txt   what pip installs with `--require-hashes`: the same versions, all they depend on, and hashes

The hashes are those of all files of a version: wheels for every platform, and the source. uv asks the index for them,
pip's own one where pip has one configured. No address of an index gets into the files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "requirements"
CONSTRAINTS: Final = ROOT / "constraints.txt"
HEADER: Final = "# Written by `make pins` from {}. Do not edit.\n"

BUILD: Final = ("setuptools", "hatchling", "hatch-fancy-pypi-readme", "editables")
"""What builds keyfold and pyspark, the one library that comes as source alone."""
TOOLS: Final = ("uv", "pip-audit")
"""What `make pins` and `make audit` run."""
SITE: Final = ("sphinx", "myst-parser", "furo", "sphinx-copybutton")
"""What `make site` runs."""
BROWSER: Final = ("playwright", "axe-playwright-python")
"""What `make pages-try` runs."""


@dataclass(frozen=True, slots=True)
class PinnedSet:
    """What one file pins beside the dependencies of the library: extras, a dependency group of pyproject.toml."""

    extras: tuple[str, ...] = ()
    group: str = ""


SETS: Final = {
    "base": PinnedSet(),
    "sink": PinnedSet(("sink", "table", "serve")),
    "spark": PinnedSet(("spark", "table")),
    "test": PinnedSet(("sink",), "test"),
    "dev": PinnedSet(("all",), "dev"),
}

_REQUIREMENT: Final = re.compile(r"([a-z0-9-]+)==([a-z0-9.+!]+)( ; [^\\]+)? \\")
_HASH: Final = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of one package; the name is normalized."""

    name: str
    version: str

    @staticmethod
    def parse(line: str) -> Pin:
        """Parse `name==version`."""
        name, _, version = line.partition("==")
        return Pin(re.sub(r"[-_.]+", "-", name).lower(), version)

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def constraints() -> list[Pin]:
    return [Pin.parse(line) for line in CONSTRAINTS.read_text(encoding="utf-8").split()]


def parse(text: str) -> Iterator[tuple[Pin, int]]:
    """Yield each package with the number of its hashes. Raise `ValueError` for a line that is neither."""
    pin, hashes, goes_on = None, 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") and not goes_on:
            continue
        requirement, hashed = _REQUIREMENT.fullmatch(line), _HASH.fullmatch(line)
        if requirement and not goes_on:
            if pin is not None:
                yield pin, hashes
            pin, hashes, goes_on = Pin(requirement[1], requirement[2]), 0, True
        elif hashed and goes_on:
            hashes, goes_on = hashes + 1, hashed[1] is not None
        else:
            raise ValueError(f"line {number} is neither `name==version` nor a hash of it: {line}")
    if goes_on:
        raise ValueError("the last line says that another follows")
    if pin is not None:
        yield pin, hashes


def disagreements(pins: Iterable[Pin], files: Mapping[str, Iterable[Pin]]) -> Iterator[str]:
    """Yield what differs between constraints.txt and the files, with what to do about it."""
    known = {pin.name: pin for pin in pins}
    used = set()
    for file, found in files.items():
        for pin in found:
            used.add(pin.name)
            if pin.name not in known:
                yield f"{file}: {pin} is not in constraints.txt; add it there"
            elif known[pin.name] != pin:
                yield f"{file}: {pin}, but constraints.txt has {known[pin.name]}; run `make pins`"
    for name in sorted(set(known) - used):
        yield f"constraints.txt: {known[name]} is in no file of requirements/; run `make pins`, or remove it"


def compiled(*words: str, given: Sequence[str] = ()) -> str:
    """Return what uv resolves, with hashes."""
    uv = Path(sys.executable).with_name("uv")
    command = [
        *(str(uv), "pip", "compile", *words, "--constraints", CONSTRAINTS.name),
        *("--generate-hashes", "--universal", "--python-version", "3.11", "--python", sys.executable),
        *("--no-header", "--no-annotate", "--quiet"),
    ]
    environment = {**os.environ, **({"UV_DEFAULT_INDEX": index} if (index := own_index()) else {})}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input="\n".join(given), stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def own_index() -> str:
    """Return the index that pip is configured with; empty where it has its usual one."""
    configured = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    given = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL")
    return given or subprocess.run(configured, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    texts = {
        "build": HEADER.format("constraints.txt") + compiled("-", given=BUILD),
        "tools": HEADER.format("constraints.txt") + compiled("-", given=TOOLS),
        "browser": HEADER.format("constraints.txt") + compiled("-", given=BROWSER),
        "site": HEADER.format("constraints.txt") + compiled("-", given=SITE),
    }
    for name, pinned in SETS.items():
        extras = [f"--extra={extra}" for extra in pinned.extras]
        words = [*extras, *[f"--group={pinned.group}"] * bool(pinned.group)]
        texts[name] = HEADER.format("pyproject.toml and constraints.txt") + compiled("pyproject.toml", *words)
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    found = {f"requirements/{name}.txt": [pin for pin, _ in parse(text)] for name, text in texts.items()}
    wrong = list(disagreements(constraints(), found))
    print("\n".join(wrong) or f"wrote {', '.join(found)}", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"uv ended with exit code {error.returncode}; nothing was written")
