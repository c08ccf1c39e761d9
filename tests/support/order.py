"""In which order the files of a run start: slow ones first, because a file is run by one worker.

A file of minutes that starts last would leave the other workers idle. Thousands of unit tests fill what is left.
"""

from __future__ import annotations

from typing import Final

import pytest

LONGEST_FILES: Final = frozenset(
    {
        *("test_changelog_large", "test_compactor_cluster", "test_compactor_kills", "test_compactor_spark"),
        *("test_compactor_terminal", "test_demo", "test_probes_rendered", "test_readers_storm", "test_replica_machine"),
        *("test_sink_group", "test_sink_metrics", "test_sink_running", "test_storm", "test_uses"),
    }
)
"""Files that take more than a minute in one of the tiers."""
SLOW_FOLDERS: Final = frozenset({"integration", "model", "property"})
"""Folders whose files take longer than those of unit tests."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, then the slow folders; within each group the random order stays."""
    items.sort(key=lambda item: (item.path.stem not in LONGEST_FILES, SLOW_FOLDERS.isdisjoint(item.path.parts)))
