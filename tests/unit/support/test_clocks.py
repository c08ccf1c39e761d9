"""Skewed clocks for tests: times that jump, and times that must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from keyfold.runtime.clock import ManualClock, Moment
from keyfold.store.api import Create
from keyfold.store.s3 import S3Location
from tests.support.clocks import HOUR_MS, ServerTime, SkewedClock, SkewedProcesses
from tests.support.moto import LocalS3Process
from tests.support.s3_gate import Gate

HOUR_S = 3600
ASKS = """
import datetime, sys, time
from keyfold.runtime.clock import SystemClock
clock = SystemClock()
for _ in sys.stdin:
    off = clock.now_ms() / 1000 - datetime.datetime.now().timestamp()
    print(round(off), round(clock.monotonic_s() - time.clock_gettime(time.CLOCK_MONOTONIC)), flush=True)
"""


def test_a_child_process_has_another_time_of_day_and_no_other_monotonic_time(tmp_path: Path) -> None:
    """`datetime`, with which boto3 signs, stays correct."""
    processes = SkewedProcesses(tmp_path)
    command = [sys.executable, "-c", ASKS]
    environment = {**os.environ, **processes.environment}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        said = []
        for by_s in (0, HOUR_S, -2 * HOUR_S):
            processes.jump(by_s)
            child.stdin.write("\n")
            said.append(child.stdout.readline().split())
        child.stdin.close()
    assert said == [["0", "0"], [str(HOUR_S), "0"], [str(-HOUR_S), "0"]]


def test_a_server_with_a_skewed_clock_gives_its_times(local_s3: LocalS3Process, location: S3Location) -> None:
    assert isinstance(local_s3, LocalS3Process)
    with Gate(str(location.endpoint_url)) as gate:
        store = S3Location(
            location.bucket,
            location.region,
            gate.url,
            location.access_key_id,
            location.secret_access_key,
        ).open()
        store.put("before", b"1", Create())
        before = store.get("before")
        written_ms = before.last_modified_ms
        gate.time = ServerTime([(written_ms / 1000 + 0.001, HOUR_S)])
        gate.time.jump(0)
        while store.get("before").date_ms < written_ms + HOUR_MS:
            pass  # the second in which it was written is not over yet
        store.put("after", b"2", Create())
        blob = store.get("after")
        assert blob.last_modified_ms >= written_ms + HOUR_MS
        assert store.get("before").last_modified_ms == written_ms
        assert {i.key: i.last_modified_ms for i in store.list("")} == {
            "before": written_ms,
            "after": blob.last_modified_ms,
        }
        store.close()


def test_the_age_of_a_moment_ignores_clock_jumps() -> None:
    base = ManualClock()
    clock = SkewedClock(base)
    moment = Moment(clock)
    base.advance(5_000)
    clock.jump(-HOUR_MS)
    assert moment.age_ms == 5_000
    assert moment.wall_ms == clock.now_ms() - 5_000
