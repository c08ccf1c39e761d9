"""What `keyfold sink run` shows on standard error, if that is a terminal: a few lines that change in place.

    users: 4 partitions (users 0-3), 12 s
      lag          2,000 offsets, most in users-2: 600
      buffered     2,000 records, 1.2 MiB
      next roll    in 4 min: users-2
      last commit  12 s ago: users-1
      committed    500 records in 4 segments, 0.3 MiB, 41 records/s

The statuses of tasks say what is assigned and buffered. Totals come from commits if the task runs in this process,
otherwise from the metrics in the statuses. Lines that tasks print stand above the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.live import Live
from rich.text import Text

from keyfold.runtime.clock import Clock
from keyfold.runtime.live_console import LiveConsole
from keyfold.runtime.terminal import escaped
from keyfold.runtime.text import count_text, duration_text, names_text, ranges_text, size_text
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import sample_key
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus

if TYPE_CHECKING:
    from keyfold_sink.write.partition import (
        Committed,  # a supervisor needs no segment writer, whose import takes 30 MB
    )

_RECORDS: Final = sample_key(names.COMMITTED.name)
_SEGMENTS: Final = sample_key(names.OBJECTS.name, ("segment",))
_BYTES: Final = sample_key(names.OBJECT_BYTES.name, ("segment",))
_BUFFERED: Final = sample_key(names.BUFFERED.name)
_TOPICS_NAMED: Final = 3
_PROBLEMS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class CommitTotals:
    """What a run has committed."""

    records: int = 0
    segments: int = 0
    size_bytes: int = 0

    def plus(self, records: int, segments: int, size_bytes: int) -> CommitTotals:
        """Return the totals after further commits."""
        return CommitTotals(self.records + records, self.segments + segments, self.size_bytes + size_bytes)

    def text(self, seconds: float) -> str:
        """Describe the totals of a run that lasted for `seconds`."""
        rate = f"{self.records / max(seconds, 1.0):,.0f} records/s"
        records, segments = count_text(self.records, "record"), count_text(self.segments, "segment")
        return f"{records} in {segments}, {size_text(self.size_bytes)}, {rate}"


class SinkProgress:
    """Keep the last status of each task and the totals, and show them if standard error is a terminal."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        is_shown: bool = False,
    ) -> None:
        """Begin a run now. `is_stopping` says whether the sink was asked to stop."""
        self._is_shown = is_shown
        self._is_stopping = is_stopping
        self._name = name
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._totals = CommitTotals()
        self._tasks: tuple[TaskStatus, ...] = ()
        self._counted: dict[int, tuple[float, ...]] = {}
        self._console = LiveConsole()
        self._live = Live(
            console=self._console,
            get_renderable=self._view,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
        )

    @property
    def is_shown(self) -> bool:
        """Whether the view is shown, so that nothing else may print to standard error."""
        return self._is_shown

    @property
    def totals(self) -> CommitTotals:
        """What this run has committed so far."""
        return self._totals

    def __enter__(self) -> Self:
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()
            if error is None or self._totals.records:
                self.say(self.result())

    def say(self, *lines: str) -> None:
        """Print lines above the view, if it is shown. May be called by many threads."""
        if self._is_shown:
            for line in lines:
                self._console.print(Text(escaped(line)))

    def committed(self, event: Committed) -> None:
        """Count a commit of a task in this process."""
        self._totals = self._totals.plus(event.record_count, int(event.record_count > 0), event.size_bytes)

    def reported(self, task: TaskStatus) -> None:
        """Count what a task in another process has committed since its last report. A new task begins at 0.

        Each report must be passed: the last one arrives with the end of its task, which `show` then no longer receives.
        """
        if task.values:
            now = tuple(task.values.get(key, 0.0) for key in (_RECORDS, _SEGMENTS, _BYTES))
            before = self._counted.get(task.pid, (0.0, 0.0, 0.0))
            self._counted[task.pid] = now
            self._totals = self._totals.plus(*(int(new - old) for new, old in zip(now, before, strict=True)))

    def show(self, tasks: Iterable[TaskStatus]) -> None:
        """Show the statuses of all tasks. A task that is missing was stopped."""
        self._tasks = tuple(tasks)

    def result(self) -> str:
        """Return the line that stays when the run has ended."""
        return f"{self._name}: committed {self._totals.text(self._seconds())}"

    def lines(self) -> list[str]:
        """Return the view."""
        rows = [*view_rows(self._tasks, self._clock.now_ms()), ("committed", self._totals.text(self._seconds()))]
        rows += [("problem", problem) for problem in problems(self._tasks)]
        head = f"{self._name}: {_assigned(self._tasks)}, {duration_text(self._seconds())}"
        stopping = ["stopping: committing what was read; Ctrl-C again ends at once"] * self._is_stopping()
        return [head, *(f"  {name:<11}  {value}" for name, value in rows), *stopping]

    def _seconds(self) -> float:
        return max(self._clock.monotonic_s() - self._started_s, 0.0)

    def _view(self) -> Text:
        return Text("\n".join(map(escaped, self.lines())), no_wrap=True, overflow="ellipsis")


def view_rows(tasks: Sequence[TaskStatus], now_ms: int) -> list[tuple[str, str]]:
    """Return name and value of what the tasks' partitions have; nothing without partitions."""
    parts = [part for task in tasks for part in task.partitions]
    if not parts:
        return []
    buffered = sum(max(0, part.buffered_records) for part in parts)
    held_bytes = sum(task.values.get(_BUFFERED, 0.0) for task in tasks)
    rolls = [part for part in parts if part.roll_due_ms != UNKNOWN]
    commits = [part for part in parts if part.committed_ms != UNKNOWN]
    first = min(rolls, key=lambda part: part.roll_due_ms, default=None)
    last = max(commits, key=lambda part: part.committed_ms, default=None)
    return [
        ("lag", _lag(parts)),
        ("buffered", f"{count_text(buffered, 'record')}, {size_text(held_bytes)}"),
        ("next roll", "-" if first is None else f"{until_text(first.roll_due_ms, now_ms)}: {_name(first)}"),
        ("last commit", "-" if last is None else f"{since_text(last.committed_ms, now_ms)}: {_name(last)}"),
    ]


def until_text(due_ms: int, now_ms: int) -> str:
    """Describe a time to come, such as `in 4 min`."""
    return f"in {duration_text((due_ms - now_ms) / 1000)}" if due_ms > now_ms else "now"


def since_text(then_ms: int, now_ms: int) -> str:
    """Describe a time that is past, such as `12 s ago`."""
    return f"{duration_text(max(0, now_ms - then_ms) / 1000)} ago"


def problems(tasks: Iterable[TaskStatus]) -> list[str]:
    """Return why tasks do not work and what blocks partitions: the first few."""
    found = []
    for task in tasks:
        blocked = [part for part in task.partitions if part.blocked_ms != UNKNOWN]
        found += [f"{_name(part)}: {part.error}" for part in blocked]
        if task.trace and not blocked:
            found.append(f"task {task.number} ({task.state}): {task.trace}")
    more = [f"and {len(found) - _PROBLEMS_SHOWN} more"] if len(found) > _PROBLEMS_SHOWN else []
    return [*found[:_PROBLEMS_SHOWN], *more]


def _assigned(tasks: Sequence[TaskStatus]) -> str:
    by_topic: dict[str, set[int]] = {}
    for task in tasks:
        for part in task.partitions:
            by_topic.setdefault(part.topic, set()).add(part.partition)
    count = sum(map(len, by_topic.values()))
    if not tasks:
        return "no task runs"
    if not count:
        states = names_text(sorted({task.state.value for task in tasks} - {RunState.RUNNING.value}))
        return f"no partitions assigned ({states})" if states else "no partitions assigned"
    paused = "PAUSED, " if all(task.state is RunState.PAUSED for task in tasks) else ""
    if len(by_topic) > _TOPICS_NAMED:
        where = f"of {len(by_topic):,} topics"
    else:
        where = f"({', '.join(f'{topic} {ranges_text(sorted(found))}' for topic, found in sorted(by_topic.items()))})"
    return f"{paused}{count_text(count, 'partition')} {where}"


def _lag(parts: Sequence[PartitionStatus]) -> str:
    known = [part for part in parts if part.lag_records != UNKNOWN]
    if not known:
        return "-"
    total = sum(part.lag_records for part in known)
    most = max(known, key=lambda part: part.lag_records)
    where = f", most in {_name(most)}: {most.lag_records:,}" if total and len(parts) > 1 else ""
    return f"{count_text(total, 'offset')}{where}"


def _name(part: PartitionStatus) -> str:
    return f"{part.topic}-{part.partition}"
