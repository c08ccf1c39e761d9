"""What the commands do with a replica whose first copy is not complete."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.names import FIRST_COPY_NAME, Place
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind
from tests.support.cleaning import new_run
from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Buckets, Keyfold, made_log, objects, read

PLACE = Place("topics", "users", 0)
MARKER = PLACE.key(FIRST_COPY_NAME)
UNFINISHED = "the first copy of replica `dr` of s3://log/topics is not complete: 1 of 3 segments"


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


@pytest.fixture
def made(buckets: Buckets) -> MadeLog:
    """A source of two topics: `users` has three segments, `orders` one."""
    made = made_log(buckets)
    made.append(records("b=2", 3))
    made.append(records("c=3", 4))
    made_log(buckets, topic="orders")
    return made


@pytest.fixture
def begun(keyfold: Keyfold, made: MadeLog) -> MadeLog:
    """Replicated until the first segment of `users` is there, and all of `orders`."""
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    second = made.manifest.segments[1].base_offset

    def is_later(call: Call) -> bool:
        name = call.key.rpartition("/")[2]
        return call.operation == "put" and "/users/" in call.key and name[:20].isdigit() and int(name[:20]) >= second

    replica = keyfold.buckets["dr"]
    replica.add(Fault(is_later, FaultKind.UNAVAILABLE, times=1 << 40))
    keyfold("run", SOURCE, "--once", code=1)
    replica._plans.clear()
    return made


class Log:
    """`keyfold log`, in the same buckets."""

    def __init__(self, buckets: Buckets, capture: pytest.CaptureFixture[str]) -> None:
        self._world = CliContext(
            lambda url: (buckets[url.split("/")[2]], "topics"), buckets.clock, Random(11), buckets.open
        )
        self._capture = capture

    def __call__(self, *args: str, code: int = 0) -> str:
        """Run it; what it printed, errors too."""
        ended = run(["log", *args], self._world)
        captured = self._capture.readouterr()
        assert ended == code, captured.out + captured.err
        return captured.out + captured.err

    def json(self, *args: str, code: int = 0) -> list[dict[str, Any]]:
        """The same with --json; a line for people about damage is left out."""
        lines = self(*args, "--json", code=code).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def log(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Log:
    return Log(buckets, capsys)


def is_marked(buckets: Buckets) -> bool:
    return f"dr/{MARKER}" in objects(buckets, "dr")


@pytest.mark.usefixtures("begun")
def test_every_reader_reports_the_copys_progress_and_reads_other_topics(keyfold: Keyfold, log: Log) -> None:
    for command in ("cat", "describe", "files"):
        assert UNFINISHED in log(command, REPLICA, "users", code=1)
    assert UNFINISHED in log("export", REPLICA, "users", "--to", "s3://out/users", code=1)
    orders, users = log.json("list", REPLICA)
    assert (orders["topic"], orders["records"]) == ("orders", 3)
    assert (users["topic"], users["error"]) == ("users", "FirstCopyUnfinished")
    assert len(read(keyfold.buckets, "dr", "orders")) == 3


@pytest.mark.usefixtures("begun")
def test_verify_exits_with_1_and_reports_what_is_missing(log: Log) -> None:
    (report,) = log.json("verify", REPLICA, "users", code=1)
    (finding,) = report["findings"]
    assert finding["kind"] == "first-copy"
    assert UNFINISHED in finding["what"]
    assert not finding["damage"]
    assert "keyfold replica run s3://log/topics dr" in finding["what"]
    printed = log("verify", REPLICA, "users", code=1)
    assert "users-0: not complete, 0 records in 0 segments, no readable manifest" in printed
    assert "damage" not in printed.lower()
    assert log.json("verify", REPLICA, "orders")[0]["ok"]


def test_a_repair_changes_nothing_and_the_next_round_finishes(keyfold: Keyfold, begun: MadeLog, log: Log) -> None:
    before = objects(keyfold.buckets, "dr")
    printed = log("repair", REPLICA, "users", "--partition", "0", code=1)
    assert UNFINISHED in printed
    assert "keyfold replica run s3://log/topics dr" in printed
    assert objects(keyfold.buckets, "dr") == before
    begun.append(records("d=4", 5))
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    assert not is_marked(keyfold.buckets)


@pytest.mark.usefixtures("begun")
def test_the_status_shows_that_a_copy_is_pending(keyfold: Keyfold) -> None:
    (shown,) = keyfold.json("status", SOURCE, "dr")
    users = next(p for p in shown["partitions"] if p["topic"] == "users")
    assert users["replica_next_offset"] == -1
    assert users["pending_segments"] == 3
    assert shown["partitions_by_state"]["in-sync"] == 1


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("name", ["dr", "second"])
def test_a_replica_removed_during_its_first_copy_can_be_registered_again_and_finished(
    keyfold: Keyfold, name: str
) -> None:
    keyfold("remove", SOURCE, "dr")
    assert is_marked(keyfold.buckets)
    # `orders` is the replica `dr` for good, so another name can have the other topic only.
    keyfold("add", SOURCE, name, "--to", REPLICA, "--topics", "users")
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    assert not is_marked(keyfold.buckets)


@pytest.mark.usefixtures("begun")
def test_the_registration_can_be_edited_during_the_first_copy(keyfold: Keyfold) -> None:
    keyfold("edit", SOURCE, "dr", "--topics", "users")
    keyfold("run", SOURCE, "--once")
    assert not is_marked(keyfold.buckets)


@pytest.mark.usefixtures("begun")
def test_the_first_copy_of_another_log_prevents_a_registration(keyfold: Keyfold) -> None:
    made_log(keyfold.buckets, bucket="other")
    keyfold("add", "s3://other/topics", "dr", "--to", REPLICA, "--topics", "users", code=1)
    assert "follows another log" in keyfold.errors[0]


@pytest.mark.usefixtures("begun")
def test_segments_without_manifest_or_marker_are_left_to_the_operator(keyfold: Keyfold) -> None:
    keyfold.buckets["dr"].inner.delete(MARKER)  # as version 0.1 left it
    keyfold("remove", SOURCE, "dr")
    keyfold("add", SOURCE, "dr", "--to", REPLICA, code=1)
    assert "--no-probe" in "\n".join(keyfold.errors)
    assert "log repair" not in "\n".join(keyfold.errors)
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--no-probe")
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")


@pytest.mark.usefixtures("begun")
def test_a_forced_promotion_refuses_a_partial_copy(keyfold: Keyfold) -> None:
    keyfold.buckets.away.add("log")
    rows = keyfold.json("promote", REPLICA, "--force", "--dry-run")
    assert [(row["topic"], row["step"]) for row in rows] == [("orders", "ready"), ("users", "missing")]
    printed = keyfold("promote", REPLICA, "--force")
    assert printed[0].startswith("orders-0: promoted")
    assert printed[1].startswith("users-0: not promoted: ")
    assert UNFINISHED in printed[1]
    assert f"keyfold log repair {REPLICA} users --partition 0 --from segments" in printed[2]
    assert is_marked(keyfold.buckets)
    keyfold("promote", REPLICA, "--force")  # what is promoted already is no replica any more, and stays
    assert is_marked(keyfold.buckets)


@pytest.mark.usefixtures("begun")
def test_a_switch_over_finishes_the_copy_first(keyfold: Keyfold) -> None:
    before = read(keyfold.buckets, "log")
    keyfold("promote", SOURCE, "dr")
    assert read(keyfold.buckets, "dr") == before
    assert not is_marked(keyfold.buckets)


def test_a_promotion_removes_a_marker_left_by_a_killed_process(keyfold: Keyfold, begun: MadeLog) -> None:
    keyfold("run", SOURCE, "--once")
    keyfold.buckets["dr"].inner.put(MARKER, b"left", Create())
    keyfold("promote", SOURCE, "dr")
    assert not is_marked(keyfold.buckets)
    del begun


@pytest.mark.usefixtures("begun")
def test_a_replica_of_an_unfinished_copy_waits(keyfold: Keyfold) -> None:
    keyfold("add", REPLICA, "far", "--to", "s3://far/topics")
    keyfold("run", REPLICA, "--once", code=1)
    (shown,) = keyfold.json("status", REPLICA, "far")
    assert read(keyfold.buckets, "far", "orders") == read(keyfold.buckets, "log", "orders")
    assert {p["state"] for p in shown["partitions"]} == {"waiting", "in-sync"}
    keyfold("run", SOURCE, "--once")
    keyfold("run", REPLICA, "--once")
    assert read(keyfold.buckets, "far") == read(keyfold.buckets, "log")


@pytest.mark.usefixtures("begun")
def test_the_compactor_skips_an_unfinished_copy(keyfold: Keyfold) -> None:
    report = new_run(keyfold.buckets["dr"].inner).clean([PLACE, Place("topics", "orders", 0)])
    assert report.exit_code == 0
    assert is_marked(keyfold.buckets)
