"""promtool: Prometheus' own checks of rules, built from source by Go once and kept in the cache.

`tests/support/go/promtool` pins it with all that it is made of, by hash: a module that excludes others, as Prometheus
does, cannot be installed by its name alone. It is built without service discovery, which is most of it and which no
rule needs. Tests that use it carry `@pytest.mark.real`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold_demo.java import default_cache, locked

MODULE: Final = Path(__file__).parent / "go" / "promtool"
_PACKAGE: Final = "github.com/prometheus/prometheus/cmd/promtool"


def version() -> str:
    """Of the library, as it is pinned: v0.310.0 is Prometheus 3.10.0."""
    found = re.search(
        r"^require github\.com/prometheus/prometheus (v\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


def is_built() -> bool:
    """Whether the binary is there."""
    return _binary(default_cache()).is_file()


def promtool_binary(cache: Path | None = None) -> Path:
    """The binary, built if it is not there yet. Raises `KeyfoldError` in one line where Go is missing."""
    cache = cache or default_cache()
    binary = _binary(cache)
    if binary.is_file():
        return binary
    with locked(cache / "promtool.lock"):
        if not binary.is_file():
            _build(binary)
    return binary


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a folder; the result is the caller's to judge."""
    return subprocess.run(
        [str(promtool_binary()), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def _binary(cache: Path) -> Path:
    return cache / "bin" / f"promtool-{version()}"


def _build(binary: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise KeyfoldError("Go is needed to build promtool, and there is none on PATH", hint="install Go 1.25 or newer")
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".build-") as work:
        built = Path(work) / "promtool"
        answer = subprocess.run(
            [go, "build", "-trimpath", "-tags", "remove_all_sd", "-ldflags=-s -w", "-o", str(built), _PACKAGE],
            cwd=MODULE,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        if answer.returncode != 0:
            raise KeyfoldError(f"promtool {version()} could not be built:\n{answer.stderr[-2000:]}")
        built.rename(binary)


def main() -> int:
    """`python -m tests.support.promtool`: build it ahead of the tests."""
    try:
        promtool_binary()
    except KeyfoldError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
