"""How `keyfold compact run` ends when a terminal or a supervisor signals its whole process group, on both engines."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location, S3Store
from tests.support import compact_command
from tests.support.cleaning import Sink, last_per_key, load, read_all, record
from tests.support.spark_cluster import children, command_line

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]
PLACE = Place("topics", "users", 0)
WAIT_TIMEOUT_S = 150.0
COMMAND = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from keyfold.cli import main; main()"
"""The first of a new session takes its standard input for its terminal."""
config_of = partial(
    compact_command.config, min_cleanable_dirty_ratio="0", spark_master="local[1]", log_cleaner_backoff_ms="600000"
)
on_both_engines = pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.full), "local"])


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = location.open()
    yield opened
    opened.close()


def fill(store: S3Store, count: int) -> list[Record]:
    """Half of it is garbage, and does not compress."""
    sink = Sink.open(store, PLACE, clock=SystemClock())
    batch = [record(i, f"k{i}" if i % 2 else "k", sink.random.randbytes(1000)) for i in range(count)]
    sink.append(batch, codec="null", block_bytes=65536)
    return batch


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, f"waited for {what}"
        time.sleep(0.05)


def below(pid: int) -> dict[int, str]:
    """All processes below one, with their command lines."""
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        for child in children(pending.pop()):
            found[child] = command_line(child)
            pending.append(child)
    return found


def is_gone(pid: int, words: str) -> bool:
    """Whether a process has ended; its number may have been given again."""
    try:
        state = Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z" or command_line(pid) != words


@dataclass
class Terminal:
    """A command in the foreground of a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    _said: bytearray

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def signal_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    @property
    def said(self) -> str:
        return self._said.decode(errors="replace")[-3000:]


@contextmanager
def in_terminal(*arguments: str) -> Iterator[Terminal]:
    """Run `keyfold ...` as a session leader with a controlling terminal, and leave no process afterwards."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", COMMAND, *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    said = bytearray()

    def listen() -> None:
        with suppress(OSError):  # its other end is closed
            while data := os.read(master, 65536):
                said.extend(data)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield Terminal(process, master, said)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        listener.join(60)
        os.close(master)


def in_a_pass(terminal: Terminal, store: S3Store, engine: str) -> dict[int, str]:
    """Wait until a pass has begun, and Spark's tasks are at work; all processes below the command."""

    def is_at_work() -> bool:
        assert terminal.process.poll() is None, terminal.said
        words = below(terminal.process.pid).values()
        has_tasks = engine == "local" or sum("worker_daemon" in each for each in words) > 1
        return load(store, PLACE).compactor.lease_until_ms > 0 and has_tasks

    wait_for(is_at_work, "a task of a pass")
    return below(terminal.process.pid)


def all_gone(found: dict[int, str]) -> None:
    wait_for(lambda: all(is_gone(*each) for each in found.items()), f"the end of {found}")


Stop = Callable[[Terminal], None]
WAYS: list[tuple[str, Stop]] = [
    ("Ctrl-C", Terminal.press_ctrl_c),
    ("SIGTERM to the group", lambda terminal: terminal.signal_group(signal.SIGTERM)),
]


@pytest.mark.sharded
@on_both_engines
@pytest.mark.parametrize("stop", [way for _, way in WAYS], ids=[name for name, _ in WAYS])
def test_one_signal_to_the_process_group_ends_a_run_after_the_current_pass(
    location: S3Location, store: S3Store, tmp_path: Path, stop: Stop, engine: str
) -> None:
    appended = fill(store, 2000)
    path = config_of(tmp_path, location, log_cleaner_io_max_bytes_per_second="800000")
    with in_terminal("compact", "run", path, "--engine", engine) as terminal:
        found = in_a_pass(terminal, store, engine)
        stop(terminal)
        assert terminal.process.wait(WAIT_TIMEOUT_S) == 0, terminal.said
        all_gone(found)
        assert "Traceback" not in terminal.said
    assert read_all(store, place=PLACE) == last_per_key(appended)
    assert load(store, PLACE).compactor.lease_until_ms == 0


@pytest.mark.full
@on_both_engines
@pytest.mark.parametrize("stop", [way for _, way in WAYS], ids=[name for name, _ in WAYS])
def test_one_signal_to_the_process_group_ends_a_loop_between_two_runs(
    location: S3Location, store: S3Store, tmp_path: Path, stop: Stop, engine: str
) -> None:
    fill(store, 10)
    with in_terminal("compact", "run", config_of(tmp_path, location), "--engine", engine) as terminal:
        wait_for(lambda: "1 cleaned" in terminal.said, "a run")
        found = below(terminal.process.pid)
        assert any("org.apache.spark" in words for words in found.values()) == (engine == "spark")
        stop(terminal)
        assert terminal.process.wait(WAIT_TIMEOUT_S) == 0, terminal.said
        all_gone(found)
        assert "Traceback" not in terminal.said


@pytest.mark.sharded
@on_both_engines
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_two_signals_or_a_kill_end_it_immediately_and_leave_no_process(
    location: S3Location, store: S3Store, tmp_path: Path, number: signal.Signals, engine: str
) -> None:
    appended = fill(store, 2000)
    path = config_of(tmp_path, location, log_cleaner_io_max_bytes_per_second="10000")
    with in_terminal("compact", "run", path, "--engine", engine) as terminal:
        found = in_a_pass(terminal, store, engine)
        if number == signal.SIGKILL:
            terminal.process.kill()
        while terminal.process.poll() is None and number != signal.SIGKILL:
            with suppress(ProcessLookupError):
                terminal.signal_group(number)
            time.sleep(0.1)  # two that come together are one
        assert terminal.process.wait(WAIT_TIMEOUT_S) == -number, terminal.said
        all_gone(found)
    assert read_all(store, place=PLACE) == appended
