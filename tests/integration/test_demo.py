"""`keyfold demo` as a user runs it: its result, and that it leaves nothing behind however it ends.

The whole story starts three JVMs of Spark, one after the other. `make test` runs it up to the sink; what the story
finds, `test_changelog_large` finds of the same changelog by the same means, but for stock Spark.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka.admin import AdminClient

from keyfold_demo.children import free_port
from keyfold_demo.treeproof import SMALL

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


class Demo:
    """A run whose processes can be told apart by their environment, and whose files by their folder."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.mark = f"KEYFOLD_TEST_RUN={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.out_path, self.err_path = folder / "out", folder / "err"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keyfold.cli", "demo", *arguments],
                env={
                    **os.environ,
                    name: value,
                    "TMPDIR": str(self.temporary),
                    "PYTHONFAULTHANDLER": "1",
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    def wait_for(self, text: str, timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.out + self.err:
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, f"{text!r} was not said:\n{self.out}{self.err}"
            time.sleep(0.05)

    def wait_for_process(self, words: str, timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while not any(words in line for line in self.processes()):
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, f"no process has {words!r} in its command line:\n{self.out}{self.err}"
            time.sleep(0.05)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code. A demo that does not end says where each of its threads is."""
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            others = self.processes()
            self.process.send_signal(signal.SIGABRT)  # the fault handler prints every thread
            self.process.wait(60)
            raise AssertionError(f"the demo did not end:\n{self.out}{self.err}\n{others}") from None

    def processes(self) -> list[str]:
        """All processes with the mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 60  # the kernel takes a moment to bury an orphan
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.processes() == []
        assert [path.name for path in self.temporary.iterdir()] == []


def check_numbers(summary: dict[str, Any]) -> None:
    assert summary["holds"], summary["checks"]
    sunk, first, second = summary["snapshots"]
    assert [s["records"] for s in (sunk, first, second)] == [SMALL.record_count, SMALL.key_count, SMALL.latest_count]
    assert sunk["tombstones"] == SMALL.tombstone_count
    assert first["tombstones"] == SMALL.key_count - SMALL.latest_count
    assert second["tombstones"] == 0
    assert {s["tree"] for s in (sunk, first, second)} == {summary["spark"]["tree"]} == {SMALL.root_tree}
    assert summary["spark"]["records"] == SMALL.latest_count
    assert sunk["segments"] > 40
    assert first["segments"] == second["segments"] == summary["partitions"]
    assert sunk["segment_bytes"] > 5 * first["segment_bytes"]
    assert second["bucket_objects"] == 3 * summary["partitions"]  # segment, index, manifest: what was replaced is gone


@ON_LINUX
@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.spark
def test_the_demo_succeeds_stays_up_on_request_and_leaves_nothing(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--json", "--keep")
    demo.wait_for("Press Enter or Ctrl-C to stop them")
    summary = json.loads(demo.out)
    check_numbers(summary)

    kept = summary["kept"]
    assert kept["pid"] == demo.process.pid
    admin = AdminClient({"bootstrap.servers": kept["bootstrap_servers"]})
    assert kept["topic"] in admin.list_topics(timeout=60).topics
    at = kept["environment"]
    client = boto3.client(
        "s3",
        endpoint_url=at["AWS_ENDPOINT_URL"],
        region_name=at["AWS_REGION"],
        aws_access_key_id=at["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=at["AWS_SECRET_ACCESS_KEY"],
    )
    objects = client.list_objects_v2(Bucket=kept["url"].split("/")[2])["Contents"]
    client.close()
    assert len(objects) == summary["snapshots"][-1]["bucket_objects"]
    assert Path(kept["folder"], "sink.json").is_file()

    assert demo.end(signal.SIGTERM) == 0
    demo.assert_nothing_is_left()


@ON_LINUX
@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.spark
def test_without_a_terminal_and_with_a_proxy_the_demo_prints_plain_lines(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    proxies = dict.fromkeys(names, dead)
    demo = Demo(tmp_path, **proxies, NO_PROXY="", no_proxy="")
    assert demo.process.wait(300) == 0, demo.out + demo.err
    assert "\x1b" not in demo.out
    assert "✗" not in demo.out
    for line in ("keyfold sink run sink.json", "keyfold compact run compact.json", "keyfold log cat s3://", "Next:"):
        assert line in demo.out
    assert SMALL.root_tree in demo.out
    assert demo.err == ""
    demo.assert_nothing_is_left()


@ON_LINUX
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize(
    ("said", "running", "number"),
    [
        ("Find Java", "kafka.Kafka", signal.SIGTERM),  # the broker is starting
        pytest.param("Start a Kafka broker", "", signal.SIGINT, marks=pytest.mark.full),
        pytest.param("Load", "sink run", signal.SIGINT, marks=pytest.mark.full),
        pytest.param("Sink the topic", "org.apache.spark", signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, said: str, running: str, number: signal.Signals) -> None:
    demo = Demo(tmp_path)
    demo.wait_for(f"✓ {said}")
    demo.wait_for_process(running)
    assert demo.end(number) == 130
    assert "Traceback" not in demo.err
    demo.assert_nothing_is_left()


def test_a_missing_java_is_reported_in_one_line(tmp_path: Path) -> None:
    demo = Demo(tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert demo.process.wait(60) == 1
    assert demo.err.splitlines()[0] == "error: Java 17 or newer is required: there is no java on PATH"
    assert demo.err.splitlines()[1].startswith("hint: install a JDK 17")
    assert len(demo.err.splitlines()) == 2
    assert demo.out == ""
