"""The view at a terminal: what tasks report, and totals from commits of one task or reports of several."""

from __future__ import annotations

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.progress import SinkProgress
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus
from keyfold_sink.write.partition import Committed

RECORDS = "keyfold_sink_records_committed_total"
SEGMENTS = "keyfold_sink_objects_written_total|segment"
BYTES = "keyfold_sink_object_bytes_written_total|segment"
BUFFERED = "keyfold_sink_buffered_bytes"
NOW_MS = ManualClock().now_ms()


def task(number: int, pid: int, records: int, segments: int, size_bytes: int) -> TaskStatus:
    parts = (PartitionStatus("users", number, RunState.RUNNING),)
    values = {RECORDS: records, SEGMENTS: segments, BYTES: size_bytes}
    return TaskStatus(number, RunState.RUNNING, pid=pid, partitions=parts, values=values)


def reading(partition: int, lag: int, buffered: int = 0, topic: str = "users") -> PartitionStatus:
    roll_due_ms = NOW_MS + 240_000 + partition if buffered else -1
    return PartitionStatus(
        topic,
        partition,
        RunState.RUNNING,
        next_offset=100,
        end_offset=100 + lag,
        committed_ms=NOW_MS - 12_000 - partition,
        buffered_records=buffered,
        roll_due_ms=roll_due_ms,
    )


def view(*tasks: TaskStatus, after_ms: int = 0) -> list[str]:
    clock = ManualClock()
    progress = SinkProgress("users", clock)
    progress.show(tasks)
    clock.advance(after_ms)
    return progress.lines()


def test_reports_of_several_tasks_add_up_and_continue_when_a_task_is_replaced() -> None:
    clock = ManualClock()
    progress = SinkProgress("users", clock)
    clock.advance(10_000)
    progress.reported(task(0, 10, 100, 1, 1_000_000))
    progress.reported(task(1, 11, 50, 1, 500_000))
    progress.reported(task(0, 10, 100, 1, 1_000_000))
    progress.reported(task(1, 11, 70, 2, 600_000))
    progress.reported(TaskStatus(0, RunState.RESTARTING))
    progress.reported(task(0, 12, 30, 1, 400_000))
    progress.show([TaskStatus(0, RunState.FAILED, values=task(0, 12, 30, 1, 400_000).values)])
    assert progress.result() == "users: committed 200 records in 4 segments, 1.9 MiB, 20 records/s"


def test_commits_of_one_task_add_up() -> None:
    clock = ManualClock()
    progress = SinkProgress("users", clock)
    clock.advance(1000)
    for partition in (0, 1):
        progress.committed(Committed(("users", partition), 10, 10, 1_500_000, RollReason.TIME))
    progress.committed(Committed(("users", 0), 12, 0, 0, RollReason.TIME))
    progress.show([task(0, 10, 7, 7, 7)])
    assert progress.result() == "users: committed 20 records in 2 segments, 2.9 MiB, 20 records/s"


def test_what_was_read_is_seen_before_the_first_commit() -> None:
    parts = (reading(0, 600, 600), reading(1, 900, 800), reading(2, 0), reading(4, 500, 1))
    shown = view(TaskStatus(0, RunState.RUNNING, partitions=parts, values={BUFFERED: 1.2 * 1024 * 1024}))
    assert shown == [
        "users: 4 partitions (users 0-2, 4), 0.0 s",
        "  lag          2,000 offsets, most in users-1: 900",
        "  buffered     1,401 records, 1.2 MiB",
        "  next roll    in 4 min: users-0",
        "  last commit  12 s ago: users-0",
        "  committed    0 records in 0 segments, 0 B, 0 records/s",
    ]


def test_the_view_moves_with_the_clock() -> None:
    running = TaskStatus(0, RunState.RUNNING, partitions=(reading(0, 1, 1),))
    assert "  next roll    in 60 s: users-0" in view(running, after_ms=180_000)
    assert "  next roll    now: users-0" in view(running, after_ms=300_000)


def test_without_partitions_the_state_of_the_tasks_is_said() -> None:
    assert view()[0] == "users: no task runs, 0.0 s"
    joining = (TaskStatus(0, RunState.UNASSIGNED), TaskStatus(1, RunState.RUNNING))
    assert view(*joining)[0] == "users: no partitions assigned (UNASSIGNED), 0.0 s"


def test_many_topics_are_counted_and_a_pause_is_said() -> None:
    parts = tuple(reading(0, 0, topic=f"t{n}") for n in range(9))
    assert view(TaskStatus(0, RunState.PAUSED, partitions=parts))[0] == "users: PAUSED, 9 partitions of 9 topics, 0.0 s"


def test_problems_are_listed_the_first_three() -> None:
    bad = tuple(
        PartitionStatus("users", n, RunState.FAILED, error=f"lost {n}", blocked_ms=NOW_MS, error_ms=NOW_MS)
        for n in range(3)
    )
    shown = view(
        TaskStatus(0, RunState.FAILED, "see the partitions", partitions=bad), TaskStatus(1, RunState.FAILED, "x")
    )
    assert shown[-4:] == [
        "  problem      users-0: lost 0",
        "  problem      users-1: lost 1",
        "  problem      users-2: lost 2",
        "  problem      and 1 more",
    ]


def test_a_stop_is_said() -> None:
    progress = SinkProgress("users", ManualClock(), lambda: True)
    assert progress.lines()[-1] == "stopping: committing what was read; Ctrl-C again ends at once"


def test_only_the_result_stays_and_lines_stand_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    with SinkProgress("users", ManualClock(), is_shown=True) as progress:
        progress.say("REST: http://127.0.0.1:8083", "\x1b[2J")
        progress.reported(task(0, 10, 100, 1, 1_000_000))
    shown = capsys.readouterr().err
    assert "REST: " in shown
    assert "\\u001b[2J" in shown
    assert shown.rstrip().endswith("users: committed 100 records in 1 segment, 976.6 KiB, 100 records/s")


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with SinkProgress("users", ManualClock()) as progress:
        progress.say("REST: http://127.0.0.1:8083")
        progress.reported(task(0, 10, 100, 1, 1_000_000))
    assert capsys.readouterr().err == ""
