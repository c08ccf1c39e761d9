"""The real changelogs in `tests/data`, for tests; the proof itself is `keyfold_demo.treeproof`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from keyfold_demo.treeproof import LARGE, SMALL, Change, Facts, latest_of, read_changelog, root_tree

__all__ = ["LARGE", "SMALL", "Change", "Facts", "changes", "latest_of", "root_tree"]

_DATA = Path(__file__).parent.parent / "data"


@cache
def changes(facts: Facts) -> tuple[Change, ...]:
    """All records of a changelog."""
    return tuple(read_changelog(_DATA / facts.file_name))
