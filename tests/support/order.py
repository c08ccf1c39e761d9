"""In which order the files of a run start, and which of them one worker runs.

Slow files start first, because a file is run by one worker. A file of minutes that starts last would leave the other
workers idle. Thousands of unit tests fill what is left.

In `make test` one worker runs all files that use the session `spark`, so that one Spark starts instead of one for each
worker. In longer runs these files would keep one worker busy long after the others, so each is scheduled alone.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from tests.support.tiers import Tier, choice_of

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


_USES_SPARK: Final = re.compile(r'\bspark: (SparkSession|Any)\b|usefixtures\("spark"\)')


class SparkOnOneWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Give each file to one worker, and all files with a Spark session to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if uses_spark(self.config.rootpath / file) else file


@cache
def uses_spark(path: Path) -> bool:
    """Return whether a test of the file asks for the session `spark`."""
    return _USES_SPARK.search(path.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Schedule a run of `make test`; leave others to xdist."""
    is_quick = choice_of(config).tier is Tier.TEST and config.getoption("dist") == "loadfile"
    return SparkOnOneWorker(config, log) if is_quick else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start Spark first, then the longest files and the slow folders; within each group the random order stays."""
    items.sort(
        key=lambda item: (
            not uses_spark(item.path),
            item.path.stem not in LONGEST_FILES,
            SLOW_FOLDERS.isdisjoint(item.path.parts),
        )
    )
