"""Three slots for workers of one sink, and faults of the worker in each slot.

A worker is a process with its tasks' processes below it. It leaves by SIGTERM, is killed with all its processes, or
alone (its tasks must see that and go), or only its tasks are; it is frozen and woken as a whole, or only its tasks are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from keyfold_demo.children import free_port
from tests.support.proof import Rig, SinkProcess
from tests.support.sink_load import Topic

TOLD_TO_STOP_S: Final = 40.0


@dataclass(slots=True)
class Workers:
    """A worker or None in each slot, each slot with its own configuration file and port."""

    rig: Rig
    configs: list[Path]
    ports: list[int]
    running: list[SinkProcess | None]
    leaving: set[int] = field(default_factory=set)
    ended: list[SinkProcess] = field(default_factory=list)

    @classmethod
    def of(cls, rig: Rig, topics: Sequence[Topic], places: int, **keys: object) -> Workers:
        """Create slots for workers of one sink that reads these topics, without workers."""
        ports = [free_port() for _ in range(places)]
        configs = []
        for port in ports:
            names, listener = ",".join(topic.name for topic in topics), f"http://127.0.0.1:{port}"
            configs.append(rig.config(names, name=topics[0].name, listeners=listener, **keys))
        return cls(rig, configs, ports, [None] * places)

    def start_missing(self) -> None:
        for slot in range(len(self.running)):
            if slot in self.leaving:
                self.join(slot)
            elif self.running[slot] is None:
                self.running[slot] = self.rig.start(self.configs[slot])

    def leave(self, slot: int) -> None:
        self._send(slot, signal.SIGTERM, self._pids(slot)[:1])
        self.leaving.add(slot)

    def kill(self, slot: int) -> None:
        self._send(slot, signal.SIGKILL, self._pids(slot))
        self._retire(slot)

    def kill_supervisor(self, slot: int) -> None:
        """Kill the supervisor only; its tasks detect it and stop."""
        self._send(slot, signal.SIGKILL, self._pids(slot)[:1])
        self._retire(slot)

    def kill_tasks(self, slot: int) -> None:
        """Kill the tasks only; the supervisor detects it and starts others."""
        self._send(slot, signal.SIGKILL, self._pids(slot)[1:])

    def freeze(self, slot: int) -> None:
        self._send(slot, signal.SIGSTOP, self._pids(slot))

    def freeze_tasks(self, slot: int) -> None:
        self._send(slot, signal.SIGSTOP, self._pids(slot)[1:])

    def wake(self, slot: int) -> None:
        self._send(slot, signal.SIGCONT, self._pids(slot))

    def join(self, slot: int) -> None:
        """Start a new worker in the slot of one that left or died."""
        worker = self.running[slot]
        if worker is not None:
            code = worker.wait(TOLD_TO_STOP_S)
            # What it could not flush in time, because the store was away, it may say; nothing else.
            in_vain = code == 1 and "nothing is lost; the next run reads the rest again" in worker.said
            assert code == 0 or in_vain, f"worker {slot} ended with {code}:\n{worker.said[-3000:]}"
            self._retire(slot)
        self.running[slot] = self.rig.start(self.configs[slot])

    def check(self) -> None:
        """Assert that no worker has ended by itself."""
        for slot, worker in enumerate(self.running):
            if worker is not None and slot not in self.leaving:
                code = worker.process.poll()
                assert code is None, f"worker {slot} ended with {code}:\n{worker.said[-3000:]}"

    def leave_all(self) -> None:
        """Send SIGTERM to all, and assert that each exits successfully."""
        for slot, worker in enumerate(self.running):
            if worker is not None:
                self.leave(slot)
        for slot, worker in enumerate(self.running):
            if worker is not None:
                code = worker.wait(TOLD_TO_STOP_S)
                assert code == 0, f"worker {slot} ended with {code}:\n{worker.said[-3000:]}"
                self._retire(slot)

    def kill_all(self) -> None:
        for slot, worker in enumerate(self.running):
            if worker is not None:
                self.kill(slot)

    def said(self) -> str:
        """Return the output of all workers so far."""
        return "".join(worker.said for worker in [*self.ended, *filter(None, self.running)])

    def ask(self, method: str, path: str, within_s: float) -> bytes | None:
        """Send a request to any worker's REST API; return None if none has answered successfully in time.

        Frozen workers do not answer, dead ones refuse, one whose store is away says 503: some other will, or later.
        """
        deadline = time.monotonic() + within_s
        while True:
            for port in self.ports:
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
                with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2) as answer:
                    found: bytes = answer.read()
                    return found
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)

    def _pids(self, slot: int) -> list[int]:
        worker = self.running[slot]
        return tree(worker.process.pid) if worker is not None and worker.process.poll() is None else []

    def _send(self, slot: int, number: signal.Signals, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _retire(self, slot: int) -> None:
        worker = self.running[slot]
        if worker is not None:
            worker.process.wait()
            self.ended.append(worker)
        self.running[slot] = None
        self.leaving.discard(slot)


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                below.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found
