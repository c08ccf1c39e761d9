"""Stop requests by signals: one mechanism, and what the compactor and the replicator do at a second signal.

A signal handler runs between two steps of the main thread, which may hold the lock that `threading.Event.set` needs.
The process would then deadlock and ignore further signals. So the handler lets a thread set the event. `_thread` starts
that thread, because `threading.Thread` also takes locks.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterable


def stop_on_signals(numbers: Iterable[int], again: Callable[[int], None]) -> threading.Event:
    """Return an event that the first of these signals sets; `again` is called with a signal that has come before.

    A signal of another number does not count as a repetition: systemd may send two kinds at once, and Python handles
    pending signals in the order of their numbers. `again` runs in the handler, in the main thread: it may raise, but
    must not take a lock. Call this function in the main thread.
    """
    stop = threading.Event()
    seen: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if number in seen:
            again(number)
        seen.append(number)
        _thread.start_new_thread(stop.set, ())

    for number in numbers:
        signal.signal(number, handle)
    return stop


def stop_or_end_on_signals(before_end: Callable[[], None] = lambda: None) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. The same signal again ends the process at once.

    `before_end` is called in the handler before the process ends, so it must not take a lock.

    In another thread than the main one nothing sets the event: a notebook's runner ends its process by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return threading.Event()

    def end_process(number: int) -> None:
        before_end()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    return stop_on_signals((signal.SIGTERM, signal.SIGINT), end_process)
