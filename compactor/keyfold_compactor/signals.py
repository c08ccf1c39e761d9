"""How a process is asked to end: by SIGTERM or SIGINT, once in peace and twice at once."""

from __future__ import annotations

import signal
import threading


def stop_on_signals() -> threading.Event:
    """SIGTERM and SIGINT ask for an end after what is under way; a second one ends the process."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        return stop  # a notebook's runner may be such a caller; it ends its process by itself
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop
