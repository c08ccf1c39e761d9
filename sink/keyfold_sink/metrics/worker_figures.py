"""Compute all samples of one worker from its tasks' reports; no I/O.

    TaskStatus ──observe──► Ledger ──samples(view)──► {metric: [Sample, ...]}

Counters continue when a task is replaced: the counts of earlier processes are kept by the task's number in the worker.
Gauges end with the task. What a task counted after its last report is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from keyfold.metrics.metric import Metric, Sample, Samples
from keyfold.runtime.clock import Clock
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.definitions import TASK
from keyfold_sink.metrics.meter import BAR
from keyfold_sink.metrics.names import BY_NAME, METRICS, REPLACED_CAUSES
from keyfold_sink.metrics.partition_figures import Figures, Stalls, partition_samples, task_gauges
from keyfold_sink.status import UNKNOWN, RunState, TaskStatus

_HISTOGRAM_PARTS: Final = ("_bucket", "_sum")
_STARTED: Final = frozenset({RunState.RUNNING, RunState.PAUSED})


@dataclass(frozen=True, slots=True)
class View:
    """Facts about the sink beside its tasks' reports. `state` is the desired state: RUNNING, PAUSED or STOPPED."""

    connector: str
    connector_class: str
    version: str
    state: RunState
    first_task_id: int
    orders_version: int
    now_ms: int
    all_partitions: bool = False


@dataclass(slots=True)
class _Task:
    """One task of the worker, and the process that runs it now."""

    status: TaskStatus
    pid: int = UNKNOWN
    before: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    has_begun: bool = True
    since_s: float = 0.0
    seen_s: float = 0.0
    spent_s: dict[RunState, float] = field(default_factory=dict)

    @property
    def is_alive(self) -> bool:
        return self.status.pid != UNKNOWN

    def total(self, key: str) -> float:
        return self.before.get(key, 0.0) + self.now.get(key, 0.0)

    def share(self, state: RunState) -> float:
        life_s = self.seen_s - self.since_s
        return self.spent_s.get(state, 0.0) / life_s if life_s > 0 else float(self.status.state is state)


class Ledger:
    """The values of a worker's tasks. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[int, _Task] = {}
        self._stalls = Stalls()
        self._replaced: dict[str, int] = dict.fromkeys(REPLACED_CAUSES, 0)
        self._starts = dict.fromkeys(
            (connect_names.TASK_STARTS, connect_names.TASK_STARTED, connect_names.TASK_NOT_STARTED), 0
        )

    def observe(self, status: TaskStatus) -> None:
        """Process a task's report, or its supervisor's status of it (`pid` is `UNKNOWN` without a process).

        The same status may be passed repeatedly.
        """
        now_s = self._clock.monotonic_s()
        task = self._tasks.get(status.number)
        is_new = task is None or status is not task.status
        if task is None:
            task = self._tasks[status.number] = _Task(status, since_s=now_s, seen_s=now_s)
        spent = task.spent_s
        spent[task.status.state] = spent.get(task.status.state, 0.0) + now_s - task.seen_s
        task.seen_s = now_s
        if status.pid not in {UNKNOWN, task.pid}:
            self._begin(task, status.pid, now_s)
        if is_new:
            self._stalls.observe(status.partitions, now_s)
            if status.pid != UNKNOWN:
                _take(task, status.values)
        task.status = status
        if not task.has_begun:
            ran = status.state in _STARTED
            task.has_begun = ran or status.state is RunState.FAILED or status.pid == UNKNOWN
            if task.has_begun:
                self._starts[connect_names.TASK_STARTED if ran else connect_names.TASK_NOT_STARTED] += 1

    def only(self, tasks: Iterable[TaskStatus], replaced: Mapping[str, int]) -> None:
        """Process all tasks; a task that is missing was stopped. `replaced` counts by cause."""
        numbers = set()
        for status in tasks:
            numbers.add(status.number)
            self.observe(status)
        for number, task in self._tasks.items():
            if number not in numbers and task.status.state is not RunState.STOPPED:
                self.observe(TaskStatus(number, RunState.STOPPED))
        self._replaced.update(replaced)

    def _begin(self, task: _Task, pid: int, now_s: float) -> None:
        """Begin the values of a new process of the task."""
        _keep(task, task.now)
        task.now = {}
        task.pid, task.has_begun = pid, False
        task.since_s, task.spent_s = now_s, {}
        self._starts[connect_names.TASK_STARTS] += 1

    def samples(self, view: View) -> Samples:
        """Return all samples by metric; an unknown metric has none."""
        found: dict[Metric, list[Sample]] = {metric: [] for metric in METRICS}
        tasks = sorted(self._tasks.items())
        stalled = self._stalls.seconds(self._clock.monotonic_s())
        for number, task in tasks:
            labels = (view.connector, str(view.first_task_id + number))
            _add_task(found, labels, task, view.now_ms, stalled)
        alive = [task.status for _, task in tasks if task.is_alive]
        of_partitions = partition_samples(
            alive, view.connector, view.now_ms, stalled, all_partitions=view.all_partitions
        )
        for metric, samples in of_partitions.items():
            found[metric] += samples
        self._add_worker(found, view)
        _add_connector(found, view, [task.status.state for _, task in tasks])
        return found

    def _add_worker(self, found: dict[Metric, list[Sample]], view: View) -> None:
        tasks = self._tasks.values()
        starts: dict[Metric, float] = {metric: float(count) for metric, count in self._starts.items()}
        begun = int(bool(tasks))
        ran = int(self._starts[connect_names.TASK_STARTED] > 0)
        failed = int(bool(begun and not ran and all(task.status.state is RunState.FAILED for task in tasks)))
        starts |= {
            connect_names.CONNECTOR_STARTS: begun,
            connect_names.CONNECTOR_STARTED: ran,
            connect_names.CONNECTOR_NOT_STARTED: failed,
        }
        for metric, value in starts.items():
            found[metric].append(Sample((), value))
        for good, bad, good_share, bad_share in _SHARES:
            ended = starts[good] + starts[bad]
            if ended:
                found[good_share].append(Sample((), starts[good] / ended))
                found[bad_share].append(Sample((), starts[bad] / ended))
        found[names.REPLACED] += [Sample((cause,), float(count)) for cause, count in self._replaced.items()]
        found[connect_names.CONNECTORS].append(Sample((), float(view.state is not RunState.STOPPED)))
        found[connect_names.TASKS].append(
            Sample((), float(sum(task.status.state is not RunState.STOPPED for task in tasks)))
        )
        found[connect_names.EPOCH].append(Sample((), float(view.orders_version)))
        found[connect_names.REBALANCES].append(
            Sample((), sum(task.total(connect_names.REBALANCES.name) for task in tasks))
        )
        for metric, of_all in _OVER_TASKS.items():
            values = [task.now[metric.name] for task in tasks if task.is_alive and metric.name in task.now]
            if values:
                found[metric].append(Sample((), of_all(values)))


_SHARES: Final = (
    (
        connect_names.TASK_STARTED,
        connect_names.TASK_NOT_STARTED,
        connect_names.TASK_STARTED_SHARE,
        connect_names.TASK_NOT_STARTED_SHARE,
    ),
    (
        connect_names.CONNECTOR_STARTED,
        connect_names.CONNECTOR_NOT_STARTED,
        connect_names.CONNECTOR_STARTED_SHARE,
        connect_names.CONNECTOR_NOT_STARTED_SHARE,
    ),
)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_OVER_TASKS: Final[Mapping[Metric, Callable[[list[float]], float]]] = {
    connect_names.REBALANCING: max,
    connect_names.REBALANCE_AVG: _mean,
    connect_names.REBALANCE_MAX: max,
    connect_names.SINCE_REBALANCE: min,
}


def _take(task: _Task, values: Mapping[str, float]) -> None:
    """Set the newest values. A counter that decreased has been reset."""
    _keep(task, {key: value for key, value in task.now.items() if _adds_up(key) and values.get(key, value) < value})
    # A report that lacks a previous counter must not decrease it either.
    rest = {key: value for key, value in task.now.items() if _adds_up(key) and key not in values}
    task.now = {**rest, **values}


def _keep(task: _Task, values: Mapping[str, float]) -> None:
    for key, value in values.items():
        if _adds_up(key):
            task.before[key] = task.before.get(key, 0.0) + value


@lru_cache(maxsize=4096)
def metric_of(key: str) -> tuple[Metric, str, tuple[str, ...]] | None:
    """Parse a key of `TaskStatus.values` into metric, part of a histogram and own labels; None for an unknown key."""
    name, *labels = key.split(BAR)
    part = next((part for part in _HISTOGRAM_PARTS if name.endswith(part) and name not in BY_NAME), "")
    metric = BY_NAME.get(name.removesuffix(part))
    if metric is None or (metric.kind == "histogram") != bool(part):
        return None
    if len(labels) != len(metric.own_labels) + (part == "_bucket"):
        return None
    return metric, part, tuple(labels)


def _adds_up(key: str) -> bool:
    found = metric_of(key)
    return found is not None and found[0].adds_up


def _add_task(
    found: dict[Metric, list[Sample]], labels: tuple[str, str], task: _Task, now_ms: int, stalled: Figures
) -> None:
    for key in {**task.before, **task.now}:  # keeps the order of buckets
        known = metric_of(key)
        if known is None or known[0].subject != TASK:
            continue
        metric, part, own = known
        if metric.adds_up:
            found[metric].append(Sample((*labels, *own), task.total(key), part))
        elif task.is_alive:
            found[metric].append(Sample((*labels, *own), task.now[key], part))
    status = task.status
    found[connect_names.TASK_STATUS].append(Sample((*labels, status.state.lower()), 1.0))
    found[connect_names.RUNNING_RATIO].append(Sample(labels, task.share(RunState.RUNNING)))
    found[connect_names.PAUSE_RATIO].append(Sample(labels, task.share(RunState.PAUSED)))
    if task.is_alive:
        for metric, values in task_gauges(status, now_ms, stalled).items():
            found[metric] += [Sample((*labels, *own), value) for own, value in values.items()]


def _add_connector(found: dict[Metric, list[Sample]], view: View, states: list[RunState]) -> None:
    connector = (view.connector,)
    has_failed = bool(states) and all(state is RunState.FAILED for state in states)
    state = (RunState.FAILED if has_failed and view.state is not RunState.STOPPED else view.state).lower()
    facts = {
        connect_names.STATUS: state,
        connect_names.CLASS: view.connector_class,
        connect_names.TYPE: "sink",
        connect_names.VERSION: view.version,
    }
    for metric, fact in facts.items():
        if not fact:
            continue
        found[metric].append(Sample((*connector, fact), 1.0))
        # Confluent's rules use one name for all of them, each with only its own label.
        own = tuple(fact if label == metric.own_labels[0] else "" for label in connect_names.CONNECTOR.own_labels)
        found[connect_names.CONNECTOR].append(Sample((*connector, *own), 1.0))
    found[connect_names.TASKS_TOTAL].append(Sample(connector, float(len(states) - states.count(RunState.STOPPED))))
    for metric, counted in _BY_TASK_STATE.items():
        found[metric].append(Sample(connector, float(states.count(counted))))


_BY_TASK_STATE: Final = {
    connect_names.TASKS_RUNNING: RunState.RUNNING,
    connect_names.TASKS_PAUSED: RunState.PAUSED,
    connect_names.TASKS_FAILED: RunState.FAILED,
    connect_names.TASKS_UNASSIGNED: RunState.UNASSIGNED,
    connect_names.TASKS_DESTROYED: RunState.STOPPED,
    connect_names.TASKS_RESTARTING: RunState.RESTARTING,
}
