"""What processes cost, for several benchmarks: this one, the JVM below it and Spark's Python workers.

CPU seconds and memory are the kernel's own figures; bytes that Spark reads, writes and shuffles are those of its event
log, which a session keeps where `EVENT_LOG` is in its settings.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Self

ROLES: Final = ("driver", "JVM", "worker")
_SAMPLE_S: Final = 0.1
_CPU_SAMPLE_S: Final = 0.5
_ZEROS: Final = bytes(8 * 1024 * 1024)


def children(of: int | None = None) -> Iterator[int]:
    """Every process below this one, or below another."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    pending = [os.getpid() if of is None else of]
    while pending:
        for pid in below.get(pending.pop(), []):
            yield pid
            pending.append(pid)


def ticks(pid: int) -> int:
    """CPU of a process and of its children that were waited for, in clock ticks; 0 where it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


class _CpuMeter:
    """CPU of all processes below this one, those that have died meanwhile too: pyspark's daemon disowns its workers,
    and with an idle one that Spark ends goes all that it had used.
    """

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> int:
        """Ticks so far."""
        with self._lock:
            for pid in (os.getpid(), *children()):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                began = fields[19]  # a number is given again
                self._ticks[pid, began] = int(fields[11]) + int(fields[12])
            return sum(self._ticks.values())

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(_CPU_SAMPLE_S)


@cache
def _meter() -> _CpuMeter:
    return _CpuMeter()


def cpu_s() -> float:
    """CPU seconds of this process and all below it since the first call, the dead ones included."""
    return _meter().look() / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int | str) -> int:
    """The most that a process had resident since `Peaks` began; 0 where it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0].split()[1]) * 1024 if found else 0


def _role(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    if Path(words[0].decode(errors="replace")).name == "java":
        return "JVM"
    return "worker" if {b"pyspark.daemon", b"keyfold_compactor.spark.worker_daemon"}.intersection(words) else ""


@dataclass(slots=True)
class Peaks:
    """Highest resident memory of each process from here on, sampled ten times a second."""

    by_process: dict[tuple[str, int], int] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        for pid in (os.getpid(), *children()):
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak begins here
            except OSError:
                continue
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()
        self._look()

    def of(self, role: str) -> list[int]:
        """Peaks of all processes of one of `ROLES`, the highest first."""
        return sorted((peak for (found, _), peak in self.by_process.items() if found == role), reverse=True)

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.by_process["driver", os.getpid()] = peak_bytes("self")
        for pid in children():
            role = _role(pid)
            if role:
                self.by_process[role, pid] = max(peak_bytes(pid), self.by_process.get((role, pid), 0))


def memory_folder(needed_bytes: int) -> str | None:
    """A folder in memory with enough space; None if there is none."""
    shared = Path("/dev/shm")  # noqa: S108 - only looked at, or as a parent of folders with random names
    has_room = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > needed_bytes
    return str(shared) if has_room else None


def ready_memory(folder: Path, n_bytes: int) -> None:
    """Write and delete a file, so that a virtual machine's host has given the memory that the next run fills.

    Freed memory goes back to the host within seconds, and comes back page by page. A run that writes a gigabyte took
    2 s of CPU more where that was so.
    """
    path = folder / "ready"
    with path.open("wb") as file:
        for _ in range(-(-n_bytes // len(_ZEROS))):
            file.write(_ZEROS)
    path.unlink()


def event_log(folder: Path) -> dict[str, str]:
    """Spark settings with which `traffic` finds what it reads."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@dataclass(frozen=True, slots=True)
class SparkTraffic:
    """Bytes that Spark itself counted."""

    read_bytes: int
    written_bytes: int
    shuffled_bytes: int


def spark_traffic(folder: Path, begin_ms: float, end_ms: float) -> SparkTraffic:
    """Of all tasks that began between two moments (epoch ms); the session must have ended."""
    read = written = shuffled = 0
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            if '"SparkListenerTaskEnd"' not in line:
                continue
            event = json.loads(line)
            if not begin_ms <= event["Task Info"]["Launch Time"] <= end_ms:
                continue
            metrics = event.get("Task Metrics") or {}
            read += metrics.get("Input Metrics", {}).get("Bytes Read", 0)
            written += metrics.get("Output Metrics", {}).get("Bytes Written", 0)
            shuffled += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
    return SparkTraffic(read, written, shuffled)
