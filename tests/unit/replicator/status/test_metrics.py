"""Metrics of replication against figures worked out by hand, as they are served, and against their page."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import fields
from random import Random
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from keyfold.log.names import Place
from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.metrics_server import serving
from keyfold_replicator.registry.open_replica import side
from keyfold_replicator.registry.replica_pair import ReplicaSettings
from keyfold_replicator.rounds.service import Replication, ReplicationContext
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.state.totals import RoundTotals, Tally
from keyfold_replicator.status import metric_names as names
from keyfold_replicator.status.metric_names import MAPR_NAMES, METRICS, PARTITIONS_SHOWN
from keyfold_replicator.status.metrics import ObservedReplica, ReplicaMeter, values
from tests.support import metrics_docs
from tests.support.replica_command import Buckets, made_log

PAGE = metrics_docs.REPLICA_PAGE


def state(partition: int, kind: SyncState = SyncState.IN_SYNC, **changes: Any) -> PartitionState:
    return PartitionState(Place("topics", "users", partition), kind, **changes)


def failing(
    partition: int, kind: SyncState = SyncState.WAITING, code: str = "SlowDown", **changes: Any
) -> PartitionState:
    return state(partition, kind, **{"code": code, "host": "s3.b", "message": "no", "backoff_ms": 400, **changes})


def test_gauges_are_sums_and_maxima_over_a_replicas_partitions() -> None:
    found = values(
        {
            "dr": ObservedReplica(
                (
                    state(0, last_attempt_ms=9_000, last_success_ms=9_000, next_attempt_ms=10_000),
                    state(1, SyncState.PENDING, pending=Pending(100, 10, 1, 5_000, 6_000), lag=Lag(10, 1_500)),
                    failing(2, pending=Pending(50, 5, 2, 4_000, 5_500), lag=Lag(3, 2_500), next_attempt_ms=12_000),
                )
            )
        }
    )
    dr = ("dr",)
    assert (found[names.PENDING_BYTES], found[names.PENDING_RECORDS]) == ({dr: 150}, {dr: 15})
    assert found[names.PENDING_SEGMENTS] == {dr: 3}
    assert (found[names.EARLIEST], found[names.LATEST]) == ({dr: 4.0}, {dr: 6.0})
    assert (found[names.LAG_RECORDS], found[names.LAG_SECONDS]) == ({dr: 10}, {dr: 2.5})
    assert (found[names.BACKOFF], found[names.NEXT_ATTEMPT]) == ({dr: 0.4}, {dr: 12.0})
    assert found[names.LAST_ATTEMPT] == {dr: 9.0}
    assert found[names.LAST_SUCCESS] == {}, "two never had any"
    assert found[names.ERRORS] == {("dr", "SlowDown", "s3.b"): 1}
    counts = found[names.PARTITIONS]
    assert isinstance(counts, dict)
    assert {key[1]: n for key, n in counts.items() if n} == {"in-sync": 1, "pending": 1, "waiting": 1}
    assert len(counts) == len(SyncState), "every state has a sample, so an alert sees it go to 0"
    assert found[names.WORST_LAG] == {("dr", "users", "2"): 2.5, ("dr", "users", "1"): 1.5}
    assert found[names.FAILING] == {("dr", "users", "2"): 1.0}
    assert found[names.PAUSED] == {dr: 0}


def test_per_partition_metrics_have_ten_samples_for_each_replica() -> None:
    states = tuple(failing(p, lag=Lag(p, p), pending=Pending(p)) for p in range(1_000))
    found = values({"dr": ObservedReplica(states), "eu": ObservedReplica((state(0, SyncState.PAUSED),))})
    for metric in (names.WORST_LAG, names.WORST_PENDING, names.FAILING):
        labelled = found[metric]
        assert isinstance(labelled, dict)
        assert len(labelled) == PARTITIONS_SHOWN
        assert {key[0] for key in labelled} == {"dr"}
    assert found[names.PAUSED] == {("dr",): 0, ("eu",): 1}


def test_every_counter_is_a_total_and_every_total_a_counter() -> None:
    numbers = [f.name for f in fields(RoundTotals) if f.name not in {"failures", "schemas_sent"}]
    totals = RoundTotals(**{name: 100 + i for i, name in enumerate(numbers)}, failures={"SlowDown": 7})
    found = values({"dr": ObservedReplica((), totals)})
    counted = [found[m] for m in METRICS if m.kind == "counter" and m is not names.FAILURES]
    assert counted == [{("dr",): 100 + i} for i in _order(numbers)]
    assert found[names.FAILURES] == {("dr", "SlowDown"): 7}


def _order(numbers: list[str]) -> list[int]:
    shown = (
        *("rounds", "commits", "pins", "plans_repeated", "sent_bytes", "objects_sent", "copied_bytes"),
        *("objects_copied", "objects_found", "objects_deleted", "orphans_deleted"),
    )
    assert sorted(shown) == sorted(numbers)
    return [numbers.index(name) for name in shown]


def test_a_replica_without_partitions_has_zeros_and_no_times() -> None:
    found = values({"dr": ObservedReplica((), is_running=True)})
    assert found[names.PENDING_BYTES] == {("dr",): 0}
    assert found[names.RUNNING] == {("dr",): 1}
    assert found[names.LAST_ATTEMPT] == {}
    assert list(found) == list(METRICS)


def test_a_replica_that_could_not_be_opened_does_not_look_healthy() -> None:
    meter = ReplicaMeter()
    meter.start_replica("dr")
    found = meter.values()
    assert found[names.RUNNING] == {("dr",): 0}
    assert found[names.PARTITIONS] == found[names.PENDING_BYTES] == {}
    assert found[names.ROUNDS] == {("dr",): 0}
    meter.publish_states("dr", [state(0)])
    assert meter.values()[names.RUNNING] == {("dr",): 1}
    meter.start_replica("dr")
    again = meter.values()
    assert again[names.RUNNING] == {("dr",): 0}, "it was edited, and is opened again"
    assert again[names.LAG_RECORDS] == {("dr",): 0}


def test_the_last_published_values_are_served() -> None:
    meter = ReplicaMeter()
    tally = meter.start_replica("dr")
    tally.add(RoundTotals(sent_bytes=5, objects_sent=1, failures={"SlowDown": 1}))
    with serving(meter.registry, "127.0.0.1", 0) as port:
        assert _scraped(port)[("keyfold_replica_sent_bytes_total", frozenset({"dr"}))] == 5
        meter.publish_states("dr", [failing(3)])
        found = _scraped(port)
        assert found[("keyfold_replica_errors", frozenset({"dr", "SlowDown", "s3.b"}))] == 1
        assert found[("keyfold_replica_failures_total", frozenset({"dr", "SlowDown"}))] == 1
        assert found[("keyfold_replica_partition_failing", frozenset({"dr", "users", "3"}))] == 1
        assert meter.start_replica("dr") is tally, "a process that opens the replica again continues counting"
        meter.remove_replica("dr")
        assert not [name for name, _ in _scraped(port) if name.startswith("keyfold_replica_")]


def test_a_process_for_two_replicas_shows_the_working_and_the_unopenable_one() -> None:
    buckets = Buckets()
    made_log(buckets)
    registry = ReplicaRegistry(buckets["log"], "topics", SystemClock(), Random(1))
    registry.add(Registration("dr", {"s3.bucket.name": "dr"}))
    credentials = {
        "aws.access.key.id": "${env:KEYFOLD_REPLICA_UNKNOWN}",
        "aws.secret.access.key": "${env:KEYFOLD_REPLICA_UNKNOWN}",
    }
    registry.add(Registration("eu", {"s3.bucket.name": "eu", **credentials}))
    means = ReplicationContext(
        ReplicaSettings(threads=2, retry_timeout_s=1), SystemClock(), Random(2), "h:1", opener=buckets.open, environ={}
    )
    meter = ReplicaMeter()
    found = Replication(side(buckets["log"], "topics"), means, observer=meter).once()
    assert (found["dr"].is_in_sync, bool(found["eu"].error)) == (True, True)
    shown = meter.values()
    assert shown[names.RUNNING] == {("dr",): 1, ("eu",): 0}
    in_sync = shown[names.PARTITIONS]
    assert isinstance(in_sync, dict)
    assert in_sync["dr", "in-sync"] == 1
    assert ("eu", "in-sync") not in in_sync
    sent = shown[names.SENT_BYTES]
    assert isinstance(sent, dict)
    assert sent["dr",] > 0 == sent["eu",]
    commits = shown[names.COMMITS]
    assert commits == {("dr",): 1, ("eu",): 0}


def _scraped(port: int) -> dict[tuple[str, frozenset[str]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_tally_counts_failures_by_code() -> None:
    tally = Tally()
    for done in (
        RoundTotals(rounds=1, failures={"A": 1}),
        RoundTotals(rounds=2, failures={"A": 1, "B": 3}),
        RoundTotals(commits=1),
    ):
        tally.add(done)
    assert tally.totals == RoundTotals(rounds=3, commits=1, failures={"A": 2, "B": 3})
    assert tally.totals.document()["failures"] == {"A": 2, "B": 3}


def test_the_page_has_one_row_for_each_metric() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == metrics_docs.page(page), f"run `{metrics_docs.COMMAND}`"
    assert all(len(text) <= 120 for metric in METRICS for text in (metric.help, metric.rises)), "a cell is a phrase"
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `keyfold_")]
    tables = {cells[0].strip().strip("`"): cells[1].strip().strip("`") for cells in rows}
    assert tables == {m.name: MAPR_NAMES.get(m, "-") for m in METRICS}
    labels = {cells[0].strip().strip("`"): set(re.findall(r"`([a-z]+)`", cells[2])) for cells in rows}
    for metric in METRICS:
        assert set(metric.labels) - {"replica"} <= labels[metric.name], f"{metric.name} names its labels"
    used = set(re.findall(r"\bkeyfold_replica_[a-z_]+", page))
    assert used <= {m.name for m in METRICS}, "examples use what there is"


def test_the_page_names_every_state_and_existing_codes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{state.value}`" in page for state in SyncState)
