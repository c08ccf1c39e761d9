"""Killed restores, a suspended broker, and two concurrent restores, on a real Kafka.

What counts is what a reader of uncommitted records sees: every record once, in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest

from keyfold.kafka.cluster import KafkaCluster
from keyfold.kafka.reading import read_topic
from keyfold.kafka.settings import client_settings
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Store
from tests.support.kafka import KafkaBroker
from tests.support.logs import MadeLog
from tests.support.moto import LocalS3Process
from tests.support.proof import Rig, read_segments, wait_for

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]
FOREVER = {"retention.ms": "-1"}
RECORDS = 12_000
KILLED = 15_000
LONG_S = 3600
"""A lease that outlasts the wait of `finish`."""
# An interrupt is ignored by what is started in the background, unless the program says otherwise.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from keyfold.cli import main; main()"
)


@pytest.fixture
def rig(broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, tmp_path: Path) -> Rig:
    return Rig(broker, local_s3, bucket, tmp_path)


@pytest.fixture
def store(local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    return S3Store(bucket)


def made_log(store: S3Store, topic: str, count: int = RECORDS) -> list[Record]:
    log = MadeLog(store=store, place=Place("topics", topic, 0), clock=SystemClock(), block_bytes=20_000)
    now = int(time.time() * 1000) - 3_600_000
    batch = [
        Record(
            o, now + o, "CreateTime", b"k%d" % (o % 900), None if o % 9 == 0 else b"v%d" % o * 20, (("h", b"%d" % o),)
        )
        for o in range(count)
    ]
    for at in range(0, count, 1500):
        log.append(batch[at : at + 1500])
    return batch


def start(rig: Rig, topic: str, target: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "restore", f"s3://{rig.bucket}/topics", topic, "--to-topic", target,
         "-b", rig.broker.bootstrap_servers, "--lease", "2", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **rig.s3.environment},
    )  # fmt: skip


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


def uncommitted(rig: Rig, topic: str) -> list[Record]:
    settings = client_settings(rig.broker.bootstrap_servers)
    return list(read_topic(settings, topic, 0, 0, end_of(rig, topic), committed=False))


def end_of(rig: Rig, topic: str) -> int:
    return cluster_at(rig.broker.bootstrap_servers).ends(topic, [0])[0].end_offset


@cache
def cluster_at(servers: str) -> KafkaCluster:
    return KafkaCluster(client_settings(servers))


def moved(rig: Rig, topic: str, before: int) -> bool:
    return end_of(rig, topic) > before


def bare(records: list[Record]) -> list[Record]:
    return [replace(r, offset=0, leader_epoch=0) for r in records]


@pytest.mark.full
def test_a_restore_killed_repeatedly_neither_repeats_nor_loses_a_record(
    rig: Rig, store: S3Store, topic: MakeTopic
) -> None:
    expected = made_log(store, "killed", KILLED)
    target = topic(config=FOREVER)
    random = Random(3)
    for kill in range(3):
        before = end_of(rig, target)
        process = start(rig, "killed", target, "--max-records-per-second", "2000")
        wait_for(partial(moved, rig, target, before), 60, "records")
        time.sleep(random.random() * 0.4)
        assert process.poll() is None, f"kill {kill}: it was done"
        process.kill()
        process.communicate()
    finish(start(rig, "killed", target))
    assert bare(uncommitted(rig, target)) == bare(expected)
    out, _ = finish(start(rig, "killed", target))
    assert "already finished, nothing was written" in out
    assert len(uncommitted(rig, target)) == KILLED
    store.close()


@pytest.mark.full
def test_a_suspended_broker_gets_nothing_twice(
    private_broker: KafkaBroker, local_s3: LocalS3Process, bucket: str, store: S3Store, tmp_path: Path
) -> None:
    rig = Rig(private_broker, local_s3, bucket, tmp_path)
    expected = made_log(store, "still")
    target = "still"
    private_broker.create_topic(target, config=FOREVER)
    process = start(rig, "still", target, "--max-records-per-second", "4000")
    wait_for(lambda: end_of(rig, target) > 500, 60, "records")
    os.kill(rig.broker.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(rig.broker.pid, signal.SIGCONT)
    finish(process)
    assert bare(uncommitted(rig, target)) == bare(expected)
    store.close()


@pytest.mark.full
def test_one_of_two_concurrent_restores_is_refused(rig: Rig, store: S3Store, topic: MakeTopic) -> None:
    expected = made_log(store, "two")
    target = topic(config=FOREVER)
    first = start(rig, "two", target, "--max-records-per-second", "50")  # minutes more than the second one needs
    wait_for(lambda: end_of(rig, target) > 0, 60, "records")
    _, err = finish(start(rig, "two", target), 1)
    assert "error: this restore is already running" in err
    first.kill()
    first.communicate()
    finish(start(rig, "two", target))
    assert bare(uncommitted(rig, target)) == bare(expected)
    store.close()


@pytest.mark.full
def test_a_restore_suspended_during_a_takeover_sends_nothing_afterwards(
    rig: Rig, store: S3Store, topic: MakeTopic
) -> None:
    expected = made_log(store, "asleep", 6000)
    target = topic(config=FOREVER)
    first = start(rig, "asleep", target, "--max-records-per-second", "1500")
    wait_for(lambda: end_of(rig, target) > 0, 60, "records")
    first.send_signal(signal.SIGSTOP)
    try:
        finish(start(rig, "asleep", target))
    finally:
        first.send_signal(signal.SIGCONT)
    _, err = finish(first, 1)
    assert "has taken over this restore" in err
    assert bare(uncommitted(rig, target)) == bare(expected)
    store.close()


def test_an_interrupt_stops_a_restore_and_the_next_run_need_not_wait(
    rig: Rig, store: S3Store, topic: MakeTopic
) -> None:
    expected = made_log(store, "stopped", 6000)
    target = topic(config=FOREVER)
    first = start(rig, "stopped", target, "--max-records-per-second", "1500", "--lease", str(LONG_S))
    wait_for(lambda: end_of(rig, target) > 0, 60, "records")
    first.send_signal(signal.SIGINT)
    finish(first, 130)
    finish(start(rig, "stopped", target, "--lease", str(LONG_S)))
    assert bare(uncommitted(rig, target)) == bare(expected)
    assert bare(read_segments(store, "stopped", 0)) == bare(expected)
    store.close()
