"""The supervisor's verdict on how its tasks ended."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from keyfold.clock import SystemClock
from keyfold_sink.supervisor import TasksFailed, supervise


def started(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Tasks that run this instead of a sink."""
    real = subprocess.Popen

    def popen(_command: list[str], **options: int) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-S", "-c", code], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "Popen", popen)


def test_a_task_that_is_told_to_stop_while_it_starts_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not listen for signals yet, so the signal ends it."""
    started(monkeypatch, "import time; time.sleep(60)")
    stop = threading.Event()
    stop.set()
    supervise(["x"], 2, stop=stop, clock=SystemClock())


def test_a_task_that_somebody_else_ended_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(TasksFailed, match="2 of 2 tasks failed"):
        supervise(["x"], 2, stop=threading.Event(), clock=SystemClock())
