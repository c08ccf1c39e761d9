"""Prometheus' server, built from source by Go once and kept in the cache.

`tests/support/go/prometheus` pins the version that the stack for a laptop names (v0.307.3 of the library is Prometheus
3.7.3), with all that it is made of, by hash. Built without service discovery but for static targets, and without the
pages of its user interface.
"""

from __future__ import annotations

from typing import Final

from tests.support.go_program import SOURCES, GoProgram, required_version

_FOLDER: Final = SOURCES / "prometheus"
_MODULE: Final = "github.com/prometheus/prometheus"

PROGRAM: Final = GoProgram(
    "prometheus",
    required_version(_FOLDER, _MODULE),
    _FOLDER,
    package=f"{_MODULE}/cmd/prometheus",
    tags=("remove_all_sd",),
)
