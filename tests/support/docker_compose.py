"""Docker's Compose, built from source by Go once and kept in the cache: what users run the stack for a laptop with.

`tests/support/go/compose` pins it with all that it is made of, by hash. It speaks to an engine by its socket
(`DOCKER_HOST`), so that an engine other than Docker's will do.
"""

from __future__ import annotations

from typing import Final

from tests.support.go_program import SOURCES, GoProgram, required_version

_FOLDER: Final = SOURCES / "compose"
_MODULE: Final = "github.com/docker/compose/v2"

PROGRAM: Final = GoProgram(
    "docker-compose",
    required_version(_FOLDER, _MODULE),
    _FOLDER,
    package=f"{_MODULE}/cmd",
)
"""1,400 packages."""
