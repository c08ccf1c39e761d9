"""The processes of a storm and their roles: which bucket is the source now, and who works on it.

`World.source` changes with a switch-over or a fail-over. Sinks and the compactor work on the source; each of the two
replicators carries to one of the other buckets. A role that a drill has closed is not started by the schedule.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from keyfold_demo.s3_endpoint import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Endpoint
from tests.support.kafka import KafkaBroker
from tests.support.proof import TOPICS_DIR, Rig
from tests.support.sink_workers import Workers
from tests.support.storm.gates import StormGate
from tests.support.storm.schedule import BUCKETS, COMPACTOR, REPLICATORS, SESSION_S, SINKS
from tests.support.storm.traffic import CLEANING, COMPACTED, EXPIRING, TOPICS

KEYFOLD: Final = (sys.executable, "-c", "from keyfold.cli import main; main()")
WAIT_S: Final = 900.0
"""How long something may take on a busy machine before the storm gives up; no decision depends on it."""
DELETE_RETENTION_MS: Final = 10_000
HOLD_MAX_MS: Final = 25_000
FILE_DELETE_DELAY_MS: Final = 5_000
EARLY: Final = -signal.SIGTERM
"""The exit code of a process that had no handler for SIGTERM yet."""
# The store was away when a worker was told to stop, or the schedule killed one of its tasks in the meantime.
_STOPPED_IN_VAIN: Final = ("nothing is lost; the next run reads the rest again", "the task's process ended by SIGKILL")
ROOT: Final = Path(__file__).parents[3]
_SHOWN: Final = 4_000


@dataclass
class Child:
    """One process, which may be started again; all that it ever said is in one file."""

    name: str
    command: Sequence[str] | Callable[[], Sequence[str]]
    """Or what makes it at each start, where it depends on the roles of the moment."""
    environ: dict[str, str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    is_ending: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the process runs, or is frozen."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process if it is not running. Wait for one that was asked to end."""
        if self.is_there and not self.is_ending:
            return
        self.wait(may_be_early=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command() if callable(self.command) else self.command,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
            )

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return whether anybody was there."""
        if not self.is_there or self.process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return True

    def kill(self) -> bool:
        """SIGKILL, and wait."""
        was_there = self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.process, self.is_ending = None, False
        return was_there

    def terminate(self) -> bool:
        """SIGTERM; it is waited for before the next start."""
        if self.is_ending:
            return False
        self.is_ending = self.send(signal.SIGTERM)
        return self.is_ending

    def wait(self, timeout_s: float = WAIT_S, *, may_be_early: bool = False) -> None:
        """Wait for a process that was asked to end; it must end well.

        `may_be_early`: it may have been told so before it had a handler for the signal.
        """
        if self.process is None:
            return
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.said[-_SHOWN:]}") from None
        self.process, self.is_ending = None, False
        is_well = code == 0 or (may_be_early and code == EARLY)
        assert is_well, f"{self.name} ended with {code}:\n{self.said[-_SHOWN:]}"

    def check(self) -> None:
        """Raise where it has ended by itself."""
        if self.process is None or self.is_ending:
            return
        code = self.process.poll()
        assert code is None, f"{self.name} ended by itself with {code}:\n{self.said[-_SHOWN:]}"

    @property
    def said(self) -> str:
        """All that it has said."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


@dataclass
class World:
    """One broker, one store with a gate before each bucket, and every process of the storm."""

    broker: KafkaBroker
    server: S3Endpoint
    gates: dict[str, StormGate]
    buckets: dict[str, str]
    """The buckets' names at the server, by the names that the schedule has for them."""
    folder: Path
    seed: int
    source: str = BUCKETS[0]
    closed: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    commands: list[subprocess.Popen[str]] = field(default_factory=list)
    is_calm: bool = False
    is_over: bool = False

    def __post_init__(self) -> None:
        self.children = {name: self._child(name) for name in (COMPACTOR, *REPLICATORS)}
        self.retired: list[Workers] = []
        self.workers = self._new_workers()

    # Configuration

    @property
    def targets(self) -> list[str]:
        """The other buckets, in the order of the replicators."""
        return [name for name in BUCKETS if name != self.source]

    @property
    def environ(self) -> dict[str, str]:
        """Credentials, for a process that gets the store's location."""
        return {key: value for key, value in self.server.environment.items() if key != "AWS_ENDPOINT_URL"}

    def url(self, name: str) -> str:
        """Return the URL of a bucket's log directory."""
        return f"s3://{self.buckets[name]}/{TOPICS_DIR}"

    def config(self, name: str, what: str = "store", **more: str) -> str:
        """Write a configuration file about a bucket; `_` in a key is `.`."""
        values = {
            "s3.bucket.name": self.buckets[name],
            "topics.dir": TOPICS_DIR,
            "store.url": self.gates[name].url,
            "s3.region": REGION,
            "aws.access.key.id": ACCESS_KEY_ID,
            "aws.secret.access.key": SECRET_ACCESS_KEY,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        path = self.folder / f"{what}-{name}.json".replace(" ", "-")
        path.write_text(json.dumps(values))
        return str(path)

    def compactor_config(self) -> str:
        """Write the compactor's configuration for the source."""
        path = Path(
            self.config(
                self.source,
                COMPACTOR,
                min_cleanable_dirty_ratio="0.2",
                delete_retention_ms=str(DELETE_RETENTION_MS),
                file_delete_delay_ms=str(FILE_DELETE_DELAY_MS),
                replica_hold_max_ms=str(HOLD_MAX_MS),
                segment_bytes="262144",
                log_cleaner_backoff_ms="1500",
                log_cleaner_lease_ms="5000",
                log_cleaner_collect_runs="10",
                log_cleaner_driver_threads="4",
                spark_master="local[1]",
            )
        )
        path.write_text(json.dumps({**json.loads(path.read_text()), **CLEANING}))
        return str(path)

    def readers_config(self, urls: dict[str, str], name: str) -> str:
        """Write the configuration of a process of readers."""
        path = self.folder / f"{name}.json"
        topics = {
            topic.name: {
                "partitions": topic.kind.partitions,
                "is_compacted": topic.name in COMPACTED,
                "expires": topic.name in EXPIRING,
            }
            for topic in TOPICS
        }
        values = {
            "bootstrap_servers": self.broker.bootstrap_servers,
            "store_urls": {self.buckets[name]: url for name, url in urls.items()},
            "buckets": list(self.buckets.values()),
            "topics_dir": TOPICS_DIR,
            "topics": topics,
            "region": REGION,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "delete_retention_ms": DELETE_RETENTION_MS,
            "seed": self.seed,
            "rest": 2.0,
        }
        path.write_text(json.dumps(values))
        return str(path)

    def command_of(self, name: str) -> Sequence[str]:
        """Return the command of the compactor or of a replicator, for the source that is now."""
        if name == COMPACTOR:
            return (sys.executable, "-m", "tests.support.storm.compactor", self.compactor_config())
        target = self.targets[REPLICATORS.index(name)]
        quick = {"replica_poll_ms": "500", "replica_discover_ms": "5000", "replica_collect_ms": "10000"}
        return (*KEYFOLD, "replica", "run", self.config(self.source, name, **quick), self.buckets[target], "--json")

    # Roles

    def carry_out(self, what: str, whom: str) -> None:
        """Do to a process what the schedule says, unless a drill has closed its role."""
        with self.lock:
            if whom not in self.closed:
                self.act(what, whom)

    def freeze_broker(self, what: str) -> None:
        """Freeze the broker, or wake it."""
        os.kill(self.broker.pid, signal.SIGSTOP if what == "freeze" else signal.SIGCONT)
        self.done[f"{what} broker"] += 1

    def act(self, what: str, whom: str) -> None:
        """Act on a process, and count it if the process was running."""
        with self.lock:
            if whom in SINKS:
                was_done = self._act_on_sink(what, SINKS.index(whom))
            else:
                was_done = self._act_on_child(what, self.children[whom])
        if was_done:
            self.done[f"{what} {whom.rstrip(' 01')}"] += 1

    def start_all(self) -> None:
        """Start everybody who is not there, but for closed roles."""
        for name in (*SINKS, *self.children):
            self.carry_out("wake", name)
            self.carry_out("start", name)

    def close(self, names: Sequence[str], *, gracefully: bool) -> None:
        """End processes, and keep the schedule from starting them."""
        with self.lock:
            self.closed.update(names)
            for name in names:
                self.act("wake", name)
                if not gracefully:
                    self.act("kill", name)
                elif name in self.children:
                    self.children[name].terminate()
        if gracefully:
            self._leave([SINKS.index(name) for name in names if name in SINKS])
            for name in names:
                if name in self.children:
                    self.children[name].wait(may_be_early=not self.is_calm)

    def open(self, names: Sequence[str]) -> None:
        """Let the schedule start them again, and start them."""
        with self.lock:
            self.closed.difference_update(names)
            for name in names:
                self.act("start", name)

    def become(self, source: str) -> None:
        """Make another bucket the source. Everybody must have been closed."""
        with self.lock:
            self.source = source
            self.retired.append(self.workers)
            self.workers = self._new_workers()

    def check(self) -> None:
        """Raise where a process has ended by itself."""
        with self.lock:
            self.workers.check()
            for child in self.children.values():
                child.check()

    def end(self) -> None:
        """Kill everybody, whatever they are at."""
        with self.lock:
            self.is_over = True
            self.closed.update((*SINKS, *self.children))
            for process in self.commands:
                process.kill()
            for workers in (*self.retired, self.workers):
                workers.kill_all()
            for child in self.children.values():
                child.kill()

    def keyfold(self, *args: str, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
        """Run a keyfold command to its end."""
        return self.command((*KEYFOLD, *args), timeout_s=timeout_s)

    def command(self, command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `end` kills it, and one that did not end in time is killed too."""
        with self.lock:
            assert not self.is_over, "the storm is over"
            process = subprocess.Popen(
                command,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            self.commands.append(process)
        try:
            said, complained = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
            process.wait()
            with self.lock:
                self.commands.remove(process)
        return subprocess.CompletedProcess(command, process.returncode, said, complained)

    def said_by_sinks(self) -> str:
        """All that any worker has said."""
        return "".join(workers.said() for workers in (*self.retired, self.workers))

    def _act_on_sink(self, what: str, slot: int) -> bool:
        workers = self.workers
        is_there = workers.running[slot] is not None
        if what == "start":
            if is_there and slot not in workers.leaving:
                return False
            if is_there:
                self._leave([slot])
            workers.join(slot)
            return True
        if what == "terminate" and slot in workers.leaving:
            return False
        actions = {
            "kill": workers.kill,
            "terminate": workers.leave,
            "freeze": workers.freeze,
            "wake": workers.wake,
            "kill tasks": workers.kill_tasks,
        }
        actions[what](slot)
        return is_there

    def _act_on_child(self, what: str, child: Child) -> bool:
        if what == "start":
            was_there = child.is_there and not child.is_ending
            child.start()
            return not was_there
        if what == "kill":
            return child.kill()
        if what == "terminate":
            return child.terminate()
        return child.send(signal.SIGSTOP if what == "freeze" else signal.SIGCONT)

    def _leave(self, slots: Sequence[int]) -> None:
        """End workers by SIGTERM. While it storms a worker may say that it could not flush in time, or end early."""
        workers = self.workers
        for slot in slots:
            if workers.running[slot] is not None and slot not in workers.leaving:
                workers.leave(slot)
        for slot in slots:
            worker = workers.running[slot]
            if worker is not None:
                code = worker.wait(WAIT_S)
                in_vain = code == EARLY or (code == 1 and any(words in worker.said for words in _STOPPED_IN_VAIN))
                is_well = code == 0 or (in_vain and not self.is_calm)
                assert is_well, f"sink {slot} ended with {code}:\n{worker.said[-_SHOWN:]}"
                workers._retire(slot)

    def _new_workers(self) -> Workers:
        """Places for sinks of the source that is now."""
        rig = Rig(self.broker, self.server, self.buckets[self.source], self.folder / f"sinks-{len(self.retired)}")
        rig.folder.mkdir()
        return Workers.of(
            rig,
            TOPICS,
            len(SINKS),
            store_url=self.gates[self.source].url,
            segment_ms=3_000,
            consumer_override_session_timeout_ms=int(SESSION_S * 1000),
            task_shutdown_graceful_timeout_ms=15_000,
        )

    def _child(self, name: str) -> Child:
        log_path = self.folder / f"{name.replace(' ', '-')}.log"
        return Child(name, lambda: self.command_of(name), self.environ, log_path)


def wait_until(condition: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None) -> None:
    """Wait for something that has to come. How long it takes decides nothing but that the storm gives up."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        check()
        assert time.monotonic() < deadline_s, f"waited {WAIT_S:.0f} s: {what}"
        time.sleep(1.0)
