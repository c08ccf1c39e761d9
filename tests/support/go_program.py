"""Programs that tests run and Go builds once. They are kept in the cache, under names that follow from their sources.

- `GoProgram("helm", "v3.22.0", SOURCES / "helm")`: a program of ours, of parts that its `go.sum` pins
- `GoProgram("versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw")`: somebody's, as it is

`python -m tests.support.go_program versitygw helm` builds ahead of the tests.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold_demo.java import default_cache, locked

SOURCES: Final = Path(__file__).parent / "go"
_PINNING: Final = ("main.go", "go.mod", "go.sum")
_BUILD_MAX_S: Final = 7200


@dataclass(frozen=True, slots=True)
class GoProgram:
    """What to build: the module in a folder (or a package that it requires), or a package of the proxy at a version."""

    name: str
    version: str
    source: Path | str
    package: str = "."
    tags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ("-s", "-w")

    def binary(self, cache: Path | None = None) -> Path:
        """Its path, built if it is not there yet. Raises `KeyfoldError` where Go is missing or cannot build it."""
        path = self.path(cache)
        if path.is_file():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parents[1] / f"{self.name}.lock"):
            if not path.is_file():
                self._build(path)
        return path

    def path(self, cache: Path | None = None) -> Path:
        """Where it is once it is built."""
        return (cache or default_cache()) / "bin" / "-".join((self.name, self.version, *self._digest()))

    def _digest(self) -> tuple[str, ...]:
        """What tells one state of our sources from another."""
        if isinstance(self.source, str):
            return ()
        content = b"".join(path.read_bytes() for name in _PINNING if (path := self.source / name).is_file())
        return (hashlib.sha256(content).hexdigest()[:8],)

    def _build(self, path: Path) -> None:
        go = find_go(f"build {self.name}")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as work:
            answer = subprocess.run(
                [go, *self._command(work)],
                cwd=self.source if isinstance(self.source, Path) else None,
                env={**os.environ, "GOBIN": work, "CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_BUILD_MAX_S,
            )
            if answer.returncode != 0:
                raise KeyfoldError(f"{self.name} {self.version} could not be built:\n{answer.stderr[-2000:]}")
            (Path(work) / self.name).rename(path)

    def _command(self, work: str) -> list[str]:
        flags = ["-trimpath", "-buildvcs=false", f"-ldflags={' '.join(self.ldflags)}"]
        if self.tags:
            flags.append(f"-tags={','.join(self.tags)}")
        if isinstance(self.source, str):
            return ["install", *flags, f"{self.source}@{self.version}"]
        return ["build", *flags, "-o", str(Path(work) / self.name), self.package]


def find_go(purpose: str) -> str:
    """The command. Raises `KeyfoldError`, which says what it is needed for, if it is missing."""
    go = shutil.which("go")
    if go is None:
        raise KeyfoldError(f"Go is needed to {purpose}, and there is none on PATH", hint="install Go 1.26 or newer")
    return go


def required_version(folder: Path, module: str) -> str:
    """Which version of a module is pinned there."""
    found = re.search(rf"^(?:require|\t) ?{re.escape(module)} (v\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, module
    return found[1]


def main(names: list[str]) -> int:
    """Build what the modules of that name in this folder call `PROGRAM`."""
    for name in names:
        program: GoProgram = importlib.import_module(f"tests.support.{name}").PROGRAM
        is_new, begun_s = not program.path().is_file(), time.monotonic()
        if is_new:
            print(f"building {program.name} {program.version}", flush=True)
        try:
            binary = program.binary()
        except KeyfoldError as error:
            print(error, file=sys.stderr)
            return 1
        if is_new:
            print(f"{binary} ({binary.stat().st_size >> 20} MiB) after {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
