"""The end of a sink by Ctrl-C at a terminal, by a signal to its process group, and by a closed terminal.

Nothing is committed before the end here (`segment.ms` is ten minutes), so what the log has was flushed by it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.moto import Fault, LocalS3Process
from tests.support.proof import SOON_MISSED, Rig, SinkProcess, wait_for
from tests.support.sink_workers import tree
from tests.support.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
PARTITIONS = 2
RECORDS = 2000
ADDRESS = re.compile(r'"addresses": \["([^"]+)"')
KEYS = {
    "tasks_max": 2,
    "listeners": "http://127.0.0.1:0",
    "segment_ms": 600_000,
    # Longer than any test waits: who ends earlier has not waited for it.
    "task_shutdown_graceful_timeout_ms": 600_000,
}


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.fixture(autouse=True)
def _hang_up_as_usual() -> Iterator[None]:
    """Restore the default action of SIGHUP. Below `nohup` it is ignored, and a sink inherits that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def fill(rig: Rig, topic: str) -> None:
    produce_all(rig.broker.bootstrap_servers, topic, synthetic(RECORDS, key_count=100))


def until_read(sink: SinkProcess, topic: str) -> None:
    """Wait until each task has a partition and has put every record of it into a segment.

    A task that is told to leave its group while that is rebalanced may need all the time that it has for leaving.
    """
    sink.until('"addresses"')
    found = ADDRESS.search(sink.said)
    assert found is not None, sink.said

    def has_read() -> bool:
        with urllib.request.urlopen(f"{found[1]}/connectors/{topic}/partitions", timeout=60) as answer:
            rows = json.loads(answer.read())["partitions"]
        is_all = sum(row["position"] or 0 for row in rows) == RECORDS
        return is_all and {row["task"] for row in rows if row["state"] == "RUNNING"} == {0, 1}

    wait_for(has_read, 120, "every record is read")


@contextmanager
def at_terminal(rig: Rig, config: Path) -> Iterator[tuple[Terminal, SinkProcess]]:
    log_path = rig.folder / "terminal.log"
    command = [sys.executable, "-m", "keyfold_sink", "run", str(config), "--json"]
    environment = {**os.environ, **rig.s3.environment}
    with Terminal(command, environment, log_path) as terminal, SinkProcess(terminal.process, log_path) as sink:
        yield terminal, sink


@pytest.mark.full
def test_one_ctrl_c_commits_pending_records_and_exits_successfully(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with at_terminal(rig, rig.config(name, **KEYS)) as (terminal, sink):
        until_read(sink, name)
        terminal.press(CTRL_C)
        assert sink.wait() == 0
    assert rig.prove(name, PARTITIONS) == RECORDS


@pytest.mark.full
def test_a_second_ctrl_c_ends_immediately_and_leaves_no_task_behind(
    rig: Rig, topic: MakeTopic, local_s3: LocalS3Process
) -> None:
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with at_terminal(rig, rig.config(name, **KEYS, **SOON_MISSED)) as (terminal, sink):
        until_read(sink, name)
        local_s3.set_faults(Fault(r"partition", status=503, times=-1))
        tasks = tree(sink.process.pid)[1:]
        assert len(tasks) == 2
        terminal.press(CTRL_C)
        sink.until("operation failed; retrying")  # its flush cannot succeed
        terminal.press(CTRL_C)
        assert sink.wait() == 130
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in tasks), 60, "the tasks are gone")
    local_s3.set_faults()
    rig.catch_up(rig.config(name, **SOON_MISSED))
    assert rig.prove(name, PARTITIONS) == RECORDS


def test_sigterm_to_only_the_worker_commits_pending_records(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with rig.start(rig.config(name, **KEYS)) as sink:
        until_read(sink, name)
        assert sink.end() == 0
        assert "shutdown" in sink.said
    assert rig.prove(name, PARTITIONS) == RECORDS


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_process_group_acts_as_one_to_the_worker(
    rig: Rig, topic: MakeTopic, number: signal.Signals
) -> None:
    """As `timeout` and shells send the signal."""
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with rig.start(rig.config(name, **KEYS)) as sink:
        until_read(sink, name)
        os.killpg(sink.process.pid, number)
        assert sink.wait() == 0
        assert "restarting task" not in sink.said
    assert rig.prove(name, PARTITIONS) == RECORDS


@pytest.mark.full
def test_a_signal_to_every_process_commits_pending_records(rig: Rig, topic: MakeTopic) -> None:
    """As systemd signals a whole unit, with `KillSignal=SIGINT` and `SendSIGHUP=yes`."""
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with rig.start(rig.config(name, **KEYS)) as sink:
        until_read(sink, name)
        for pid in reversed(tree(sink.process.pid)):
            for number in (signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        assert sink.wait() == 0
    assert rig.prove(name, PARTITIONS) == RECORDS


@pytest.mark.full
def test_a_closed_terminal_ends_the_sink_after_a_commit(rig: Rig, topic: MakeTopic) -> None:
    name = topic(partitions=PARTITIONS, config=FOREVER)
    fill(rig, name)
    with at_terminal(rig, rig.config(name, **KEYS)) as (terminal, sink):
        until_read(sink, name)
        terminal.hang_up()
        assert sink.wait() == 0
    assert rig.prove(name, PARTITIONS) == RECORDS
