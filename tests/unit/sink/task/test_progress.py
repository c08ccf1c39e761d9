"""The progress line at a terminal: commits of one task, or reports of several."""

from __future__ import annotations

import pytest
from rich.console import Console

from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.progress import SinkProgress
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus
from keyfold_sink.write.partition import Committed

RECORDS = "keyfold_sink_records_committed_total"
SEGMENTS = "keyfold_sink_objects_written_total|segment"
BYTES = "keyfold_sink_object_bytes_written_total|segment"


def task(number: int, pid: int, records: int, segments: int, size_bytes: int) -> TaskStatus:
    parts = (PartitionStatus("users", number, RunState.RUNNING),)
    values = {RECORDS: records, SEGMENTS: segments, BYTES: size_bytes}
    return TaskStatus(number, RunState.RUNNING, pid=pid, partitions=parts, values=values)


def test_reports_of_several_tasks_add_up_and_continue_when_a_task_is_replaced() -> None:
    clock = ManualClock()
    progress = SinkProgress("users", clock)
    clock.advance(10_000)
    progress.reported([task(0, 10, 100, 1, 1_000_000), task(1, 11, 50, 1, 500_000)])
    progress.reported([task(0, 10, 100, 1, 1_000_000), task(1, 11, 70, 2, 600_000)])
    progress.reported([TaskStatus(0, RunState.RESTARTING), task(1, 11, 70, 2, 600_000)])
    progress.reported([task(0, 12, 30, 1, 400_000)])
    assert str(progress._line()) == "users: 200 records in 4 segments, 2.0 MB, 2 partitions, 20/s"


def test_commits_of_one_task_add_up() -> None:
    clock = ManualClock()
    progress = SinkProgress("users", clock)
    clock.advance(1000)
    for partition in (0, 1):
        progress.committed(Committed(("users", partition), 10, 10, 1_500_000, RollReason.TIME))
    progress.committed(Committed(("users", 0), 12, 0, 0, RollReason.TIME))
    assert str(progress._line()) == "users: 20 records in 2 segments, 3.0 MB, 2 partitions, 20/s"


def test_a_terminal_shows_one_changing_line_below_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    progress = SinkProgress("users", ManualClock())
    progress._console = Console(stderr=True, force_terminal=True, width=100)
    progress._live.console = progress._console
    with progress:
        progress.say("REST: http://127.0.0.1:8083")
        progress.reported([task(0, 10, 100, 1, 1_000_000)])
    shown = capsys.readouterr().err
    assert "REST: " in shown
    assert "100 records in 1 segments" in shown
