"""A worker's metrics over its tasks: continuing counters, disappearing gauges, and the worst partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from keyfold.metrics.metric import Metric, Samples
from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.definitions import PARTITION
from keyfold_sink.metrics.meter import TaskMeter, sample_key
from keyfold_sink.metrics.names import BY_NAME, PARTITIONS_SHOWN
from keyfold_sink.metrics.worker_figures import Ledger, View, metric_of
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus

Found = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    return Ledger(clock)


def view(clock: ManualClock, **changes: object) -> View:
    known = View("users", "io.Sink", "1.2", RunState.RUNNING, 0, 7, clock.now_ms())
    return replace(known, **changes)  # type: ignore[arg-type]  # fields by name, of any type


def flat(samples: Samples) -> Found:
    found: Found = {}
    for metric, of_metric in samples.items():
        for sample in of_metric:
            key = (metric.name + sample.part, sample.labels)
            assert key not in found, f"{key} is there twice: Prometheus would refuse all of it"
            assert len(sample.labels) == len(metric.labels) + (sample.part == "_bucket")
            found[key] = sample.value
    return found


def seen(ledger: Ledger, clock: ManualClock, **changes: object) -> Found:
    return flat(ledger.samples(view(clock, **changes)))


def task(number: int = 0, state: RunState = RunState.RUNNING, **changes: object) -> TaskStatus:
    return TaskStatus(number, state, **{"pid": 100, "started_ms": 1, **changes})  # type: ignore[arg-type]  # fields by name, of any type


def of_task(found: Found, metric: Metric, *own: str, id_: str = "0") -> float | None:
    return found.get((metric.name, ("users", id_, *own)))


# Counters and gauges of tasks that come and go


def test_counters_continue_when_a_task_is_replaced_and_gauges_disappear(ledger: Ledger, clock: ManualClock) -> None:
    ledger.observe(task(values={connect_names.READ.name: 100.0, names.BUFFERED.name: 5.0}))
    ledger.observe(task(values={connect_names.READ.name: 130.0, names.BUFFERED.name: 7.0}))
    found = seen(ledger, clock)
    assert (of_task(found, connect_names.READ), of_task(found, names.BUFFERED)) == (130.0, 7.0)

    ledger.observe(TaskStatus(0, RunState.RESTARTING, "it died"))
    found = seen(ledger, clock)
    assert of_task(found, connect_names.READ) == 130.0
    assert of_task(found, names.BUFFERED) is None
    assert of_task(found, connect_names.TASK_STATUS, "restarting") == 1.0

    ledger.observe(task(state=RunState.RESTARTING, pid=101))
    assert of_task(seen(ledger, clock), connect_names.READ) == 130.0
    ledger.observe(task(pid=101, values={connect_names.READ.name: 4.0, names.BUFFERED.name: 1.0}))
    found = seen(ledger, clock)
    assert (of_task(found, connect_names.READ), of_task(found, names.BUFFERED)) == (134.0, 1.0)


def test_a_failed_task_keeps_only_its_counters_and_its_state(ledger: Ledger, clock: ManualClock) -> None:
    values = {connect_names.READ.name: 100.0, names.BUFFERED.name: 5.0}
    ledger.observe(task(values=values))
    ledger.observe(task(state=RunState.FAILED, values=values, trace="no right"))
    ledger.observe(task(state=RunState.FAILED, values=values, trace="no right", pid=UNKNOWN))
    found = seen(ledger, clock)
    assert of_task(found, connect_names.READ) == 100.0
    assert of_task(found, names.BUFFERED) is None
    assert of_task(found, connect_names.TASK_STATUS, "failed") == 1.0
    assert of_task(found, connect_names.TASK_STATUS, "running") is None
    assert found[connect_names.STATUS.name, ("users", "failed")] == 1.0
    assert found[connect_names.TASKS_FAILED.name, ("users",)] == 1.0


def test_a_counter_that_falls_is_treated_as_reset(ledger: Ledger, clock: ManualClock) -> None:
    ledger.observe(task(values={connect_names.READ.name: 100.0, connect_names.SENT.name: 90.0}))
    ledger.observe(task(values={connect_names.READ.name: 3.0, connect_names.SENT.name: 95.0}))
    found = seen(ledger, clock)
    assert (of_task(found, connect_names.READ), of_task(found, connect_names.SENT)) == (103.0, 95.0)


def test_unknown_values_of_a_newer_task_are_omitted(ledger: Ledger, clock: ManualClock) -> None:
    ledger.observe(task(values={"keyfold_sink_of_tomorrow": 1.0, "keyfold_sink_rolls_total|a|b": 1.0, "": 2.0}))
    assert not any("tomorrow" in name for name, _ in seen(ledger, clock))


@pytest.mark.parametrize("key", ["", "x", "keyfold_sink_flush_seconds", "keyfold_sink_rolls_total", "_bucket|1"])
def test_a_key_that_is_not_a_sample_is_unknown(key: str) -> None:
    assert metric_of(key) is None


KEYS = (
    connect_names.READ.name,
    sample_key(names.ROLLS.name, ("time",)),
    sample_key(names.STORE_ERRORS.name, ("create", "SlowDown")),
    connect_names.RETRIES.name,
    sample_key(f"{names.FLUSH_SECONDS.name}_bucket", ("+Inf",)),
    sample_key(f"{names.FLUSH_SECONDS.name}_sum"),
    connect_names.REBALANCES.name,
)


class Replacements(RuleBasedStateMachine):
    """A task that counts, reports, dies, fails, stops and restarts while its worker collects metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.ledger = Ledger(self.clock)
        self.counts: dict[str, float] = {}
        self.told: list[dict[str, float]] = [{}]
        self.pid = 1
        self.last: TaskStatus | None = task(pid=1)
        self.before: Found = {}

    @property
    def is_alive(self) -> bool:
        return self.last is not None and self.last.pid != UNKNOWN

    @rule(key=st.sampled_from(KEYS), amount=st.integers(1, 1_000))
    def count(self, key: str, amount: int) -> None:
        self.counts[key] = self.counts.get(key, 0.0) + amount

    @precondition(lambda self: self.is_alive)
    @rule(is_last=st.booleans())
    def tell(self, is_last: bool) -> None:
        self.told[-1] = dict(self.counts)
        self.last = task(pid=self.pid, values=dict(self.counts))
        self.ledger.observe(self.last)
        if is_last:
            self.start()

    @precondition(lambda self: self.is_alive)
    @rule()
    def tell_nothing(self) -> None:
        self.last = task(pid=self.pid)

    @rule()
    def die(self) -> None:
        self.last = TaskStatus(0, RunState.RESTARTING, "it died")

    @precondition(lambda self: self.last is not None)
    @rule()
    def fail(self) -> None:
        assert self.last is not None
        self.last = replace(self.last, state=RunState.FAILED, pid=UNKNOWN, partitions=())

    @rule()
    def stop(self) -> None:
        self.last = None

    @rule()
    def start(self) -> None:
        self.pid += 1
        self.counts = {}
        self.told.append({})
        self.last = TaskStatus(0, RunState.RESTARTING, pid=self.pid)

    @rule(ms=st.integers(0, 100_000))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @invariant()
    def no_counter_falls_and_each_is_the_sum_of_what_was_told(self) -> None:
        self.ledger.only([] if self.last is None else [self.last], {})
        now = seen(self.ledger, self.clock)
        for sample, count in self.before.items():
            if BY_NAME[sample[0].removesuffix("_bucket").removesuffix("_sum")].adds_up:
                assert now.get(sample, -1.0) >= count, f"{sample} fell"
        self.before = now
        for key in KEYS:
            known = metric_of(key)
            assert known is not None
            metric, part, own = known
            labels = own if metric is connect_names.REBALANCES else ("users", "0", *own)
            total = sum(life.get(key, 0.0) for life in self.told)
            assert self.before.get((metric.name + part, labels), 0.0) == total


TestReplacements = Replacements.TestCase
TestReplacements.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


# Starts and states


def test_a_start_succeeds_when_the_task_runs_and_fails_when_it_ends_before(ledger: Ledger, clock: ManualClock) -> None:
    starting = task(state=RunState.UNASSIGNED)
    ledger.only([starting], {})
    found = seen(ledger, clock)
    assert (found[connect_names.TASK_STARTS.name, ()], found[connect_names.TASK_STARTED.name, ()]) == (1.0, 0.0)
    assert (connect_names.TASK_STARTED_SHARE.name, ()) not in found, "nothing is known yet"
    ledger.only([TaskStatus(0, RunState.RESTARTING, "it died")], {"crashed": 1})
    ledger.only([task(state=RunState.RESTARTING, pid=101)], {"crashed": 1})
    ledger.only([task(pid=101)], {"crashed": 1})
    ledger.only([task(pid=101, state=RunState.FAILED)], {"crashed": 1})
    found = seen(ledger, clock)
    assert found[connect_names.TASK_STARTS.name, ()] == 2.0
    assert found[connect_names.TASK_STARTED.name, ()] == found[connect_names.TASK_NOT_STARTED.name, ()] == 1.0
    assert (
        found[connect_names.TASK_STARTED_SHARE.name, ()] == found[connect_names.TASK_NOT_STARTED_SHARE.name, ()] == 0.5
    )
    assert found[names.REPLACED.name, ("crashed",)] == 1.0
    assert found[names.REPLACED.name, ("hung",)] == 0.0
    assert found[connect_names.CONNECTOR_STARTED.name, ()] == 1.0


def test_a_sink_whose_tasks_all_fail_before_they_run_has_not_started(ledger: Ledger, clock: ManualClock) -> None:
    ledger.only([task(0, RunState.FAILED), task(1, RunState.FAILED, pid=7)], {})
    found = seen(ledger, clock)
    assert found[connect_names.CONNECTOR_STARTS.name, ()] == found[connect_names.CONNECTOR_NOT_STARTED.name, ()] == 1.0
    assert found[connect_names.CONNECTOR_NOT_STARTED_SHARE.name, ()] == 1.0


def test_tasks_are_counted_by_state_and_missing_ones_count_as_stopped(ledger: Ledger, clock: ManualClock) -> None:
    ledger.only([task(0), task(1, RunState.PAUSED, pid=2), task(2, RunState.UNASSIGNED, pid=3), task(3, pid=4)], {})
    ledger.only([task(0), task(1, RunState.PAUSED, pid=2), task(2, RunState.UNASSIGNED, pid=3)], {})
    found = seen(ledger, clock, first_task_id=8)
    assert found[connect_names.TASKS.name, ()] == found[connect_names.TASKS_TOTAL.name, ("users",)] == 3.0
    assert found[connect_names.TASKS_RUNNING.name, ("users",)] == 1.0
    assert found[connect_names.TASKS_PAUSED.name, ("users",)] == 1.0
    assert found[connect_names.TASKS_UNASSIGNED.name, ("users",)] == 1.0
    assert found[connect_names.TASKS_DESTROYED.name, ("users",)] == 1.0
    assert of_task(found, connect_names.TASK_STATUS, "paused", id_="9") == 1.0
    assert found[connect_names.EPOCH.name, ()] == 7.0


def test_ratios_are_shares_of_a_tasks_lifetime(ledger: Ledger, clock: ManualClock) -> None:
    running, paused = task(), task(state=RunState.PAUSED)
    ledger.only([running], {})
    clock.advance(3_000)
    ledger.only([running], {})
    ledger.only([paused], {})
    clock.advance(1_000)
    ledger.only([paused], {})
    found = seen(ledger, clock)
    assert of_task(found, connect_names.RUNNING_RATIO) == pytest.approx(0.75)
    assert of_task(found, connect_names.PAUSE_RATIO) == pytest.approx(0.25)


def test_the_connectors_state_is_the_desired_state(ledger: Ledger, clock: ManualClock) -> None:
    ledger.only([task(state=RunState.PAUSED)], {})
    found = seen(ledger, clock, state=RunState.PAUSED)
    assert found[connect_names.STATUS.name, ("users", "paused")] == 1.0
    own = {labels[1:] for name, labels in found if name == connect_names.CONNECTOR.name}
    assert own == {("paused", "", "", ""), ("", "io.Sink", "", ""), ("", "", "sink", ""), ("", "", "", "1.2")}
    ledger.only([], {})
    found = seen(ledger, clock, state=RunState.STOPPED, connector_class="")
    assert found[connect_names.STATUS.name, ("users", "stopped")] == 1.0
    assert found[connect_names.CONNECTORS.name, ()] == 0.0
    assert not any(name == connect_names.CLASS.name for name, _ in found), "no class was given"


def test_a_workers_rebalances_are_the_sum_over_its_tasks(ledger: Ledger, clock: ManualClock) -> None:
    meters = [TaskMeter(clock), TaskMeter(clock)]
    for number, meter in enumerate(meters):
        meter.rebalance_began()
        clock.advance(1_000 * (number + 1))
        meter.rebalance_is_over()
    meters[0].rebalance_began()
    clock.advance(500)
    ledger.only([task(n, pid=n + 1, values=meter.values({})) for n, meter in enumerate(meters)], {})
    found = seen(ledger, clock)
    assert found[connect_names.REBALANCES.name, ()] == 2.0
    assert found[connect_names.REBALANCING.name, ()] == 1.0
    assert found[connect_names.REBALANCE_MAX.name, ()] == pytest.approx(2_000)
    assert found[connect_names.REBALANCE_AVG.name, ()] == pytest.approx(1_500)
    assert found[connect_names.SINCE_REBALANCE.name, ()] == pytest.approx(500)


# Partitions


def at(partition: int, next_offset: int, end_offset: int, **changes: object) -> PartitionStatus:
    values = {"state": RunState.RUNNING, "position": next_offset, **changes}
    return PartitionStatus("t", partition, next_offset=next_offset, end_offset=end_offset, **values)  # type: ignore[arg-type]  # fields by name, of any type


def partitions_of(found: Found, metric: Metric) -> dict[int, float]:
    return {int(labels[2]): value for (name, labels), value in found.items() if name == metric.name}


def test_sums_and_worst_of_a_task(ledger: Ledger, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    partitions = (
        at(0, 10, 30, position=25, oldest_record_ms=now_ms - 4_000, committed_ms=now_ms - 9_000),
        at(1, 5, 5, position=5, committed_ms=now_ms - 2_000),
        at(2, UNKNOWN, 50, state=RunState.UNASSIGNED, position=UNKNOWN, blocked_ms=now_ms - 7_000),
        at(3, 1, 4, state=RunState.FAILED, position=UNKNOWN, blocked_ms=now_ms - 90_000),
    )
    ledger.observe(task(partitions=partitions, reported_ms=now_ms - 300))
    found = seen(ledger, clock)
    assert of_task(found, connect_names.PARTITIONS) == 4.0
    assert (of_task(found, names.LAG), of_task(found, names.LAG_MAX)) == (23.0, 20.0)
    assert of_task(found, connect_names.TASK_LAG) == 15.0
    assert of_task(found, names.AGE_MAX) == 4.0
    assert of_task(found, names.LAST_COMMIT) == (now_ms - 2_000) / 1000
    assert of_task(found, names.REPORT_AGE) == pytest.approx(0.3)
    assert of_task(found, names.BY_STATE, "RUNNING") == 2.0
    assert (of_task(found, names.BLOCKED), of_task(found, names.BLOCKED_SECONDS)) == (1.0, 7.0)
    assert partitions_of(found, names.PARTITION_LAG) == {0: 20.0, 3: 3.0}
    assert partitions_of(found, names.PARTITION_NEXT) == {0: 10.0, 3: 1.0}
    assert partitions_of(found, names.PARTITION_FAILED) == {3: 1.0}
    assert partitions_of(found, names.PARTITION_BLOCKED) == {2: 7.0}
    assert partitions_of(found, names.PARTITION_COMMIT) == {0: (now_ms - 9_000) / 1000}, "of those with lag"


def test_a_record_of_the_future_or_without_a_timestamp_has_no_age(ledger: Ledger, clock: ManualClock) -> None:
    ledger.observe(task(partitions=(at(0, 0, 9, oldest_record_ms=clock.now_ms() + 60_000), at(1, 0, 9))))
    found = seen(ledger, clock)
    assert of_task(found, names.AGE_MAX) == 0.0
    assert partitions_of(found, names.PARTITION_AGE) == {}


def test_of_thousands_of_partitions_the_ten_worst_have_samples(ledger: Ledger, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    partitions = tuple(
        at(p, p, 3 * p, oldest_record_ms=now_ms - p, committed_ms=now_ms - p, blocked_ms=now_ms - p)
        for p in range(2_000)
    )
    ledger.observe(task(partitions=partitions))
    clock.advance(0)
    found = seen(ledger, clock)
    worst = set(range(1_990, 2_000))
    for metric in (m for m in names.METRICS if m.subject == PARTITION):
        shown = set(partitions_of(found, metric))
        assert len(shown) <= PARTITIONS_SHOWN
        assert shown <= worst or metric is names.PARTITION_STALLED
    everything = seen(ledger, clock, all_partitions=True)
    assert len(partitions_of(everything, names.PARTITION_NEXT)) == 2_000
    assert partitions_of(everything, names.PARTITION_LAG)[0] == 0.0, "without lag, too"


def test_a_partition_of_two_tasks_counts_once_for_the_task_that_has_claimed_it(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.observe(task(0, partitions=(at(0, 5, 9),)))
    ledger.observe(task(1, pid=2, partitions=(at(0, UNKNOWN, 9, state=RunState.UNASSIGNED),)))
    assert partitions_of(seen(ledger, clock), names.PARTITION_NEXT) == {0: 5.0}
    ledger.observe(task(1, pid=2, partitions=(at(0, 8, 9),)))
    assert partitions_of(seen(ledger, clock), names.PARTITION_NEXT) == {0: 8.0}


def test_stalled_time_counts_from_the_first_unread_record(ledger: Ledger, clock: ManualClock) -> None:
    def says(*partitions: PartitionStatus, pid: int = 100) -> Found:
        ledger.observe(task(partitions=partitions, pid=pid))
        return seen(ledger, clock)

    assert of_task(says(at(0, 5, 5)), names.STALLED_SECONDS) == 0.0
    clock.advance(60_000)
    assert of_task(says(at(0, 5, 9)), names.STALLED_SECONDS) == 0.0, "it has only just come"
    clock.advance(10_000)
    found = says(at(0, 5, 12))
    assert of_task(found, names.STALLED_SECONDS) == 10.0
    assert partitions_of(found, names.PARTITION_STALLED) == {0: 10.0}
    clock.advance(5_000)
    found = says(at(0, 5, 12), pid=200)
    assert of_task(found, names.STALLED_SECONDS) == 15.0, "another task does not move either"
    clock.advance(5_000)
    assert of_task(says(at(0, 6, 12), pid=200), names.STALLED_SECONDS) == 0.0, "it has moved"
    clock.advance(5_000)
    assert of_task(says(at(0, 6, 12, state=RunState.PAUSED), pid=200), names.STALLED_SECONDS) == 0.0, "it may not"
    clock.advance(5_000)
    assert of_task(says(at(0, 6, 12), pid=200), names.STALLED_SECONDS) == 0.0
    clock.advance(5_000)
    assert partitions_of(says(pid=200), names.PARTITION_STALLED) == {}, "it is another worker's"


def test_a_ledger_reads_the_values_of_a_meter(ledger: Ledger, clock: ManualClock) -> None:
    meter = TaskMeter(clock)
    meter.batch(10, 100, clock.monotonic_s())
    rolled_s = meter.rolled(RollReason.TIME, 10)
    clock.advance(20)
    meter.committed(None, rolled_s)
    ledger.observe(task(values=meter.values({})))
    found = seen(ledger, clock)
    assert of_task(found, connect_names.READ) == 10.0
    assert of_task(found, connect_names.ACTIVE) == 10.0
    assert found["keyfold_sink_flush_seconds_bucket", ("users", "0", "0.025")] == 1.0
    assert of_task(found, names.ROLLS, "time") == 1.0
