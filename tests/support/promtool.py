"""promtool: Prometheus' own checks of rules, built from source by Go once and kept in the cache.

`tests/support/go/promtool` pins it with all that it is made of, by hash: a module that excludes others, as Prometheus
does, cannot be installed by its name alone. It is built without service discovery, which is most of it and which no
rule needs. Tests that use it carry `@pytest.mark.real`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.go_program import SOURCES, GoProgram, required_version

_FOLDER: Final = SOURCES / "promtool"
_MODULE: Final = "github.com/prometheus/prometheus"

PROGRAM: Final = GoProgram(
    "promtool",
    required_version(_FOLDER, _MODULE),
    _FOLDER,
    package=f"{_MODULE}/cmd/promtool",
    tags=("remove_all_sd",),
)
"""Of the library as it is pinned: v0.310.0 is Prometheus 3.10.0. 2 min to build."""


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a folder; the result is the caller's to judge."""
    return subprocess.run(
        [str(PROGRAM.binary()), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
