"""Child processes that do not outlive this one, and free ports."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading


def death_with_parent() -> list[str]:
    """A command's first words: on Linux the kernel sends the child SIGTERM when its starter is killed.

    It watches the starting thread, not the process, so it is only of use from the main thread.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "TERM"]


def free_port() -> int:
    """A free port of 127.0.0.1. The kernel does not hand it out again immediately."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[bytes], retry_timeout_s: float = 20.0) -> None:
    """SIGTERM, then SIGKILL after `retry_timeout_s`; returns when the process is gone."""
    process.terminate()
    try:
        process.wait(retry_timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
