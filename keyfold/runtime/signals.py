"""Signals that end a process: the first SIGTERM or SIGINT ends it gracefully, the second at once."""

from __future__ import annotations

import signal
import threading

from keyfold.runtime import stop_signals


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process."""
    if threading.current_thread() is not threading.main_thread():
        return threading.Event()  # a notebook's runner may be such a caller; it ends its process by itself
    return stop_signals.stop_on_signals((signal.SIGTERM, signal.SIGINT), _end)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
