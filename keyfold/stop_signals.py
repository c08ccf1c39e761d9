"""A stop that a signal asks for.

A handler runs between two steps of the main thread, which may hold the very lock that `threading.Event.set` takes: the
process would wait for itself for ever, and take no further signal. So a handler leaves the event to a thread.
`_thread` starts that thread, because `threading.Thread` takes locks too.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterable


def stop_on_signals(numbers: Iterable[int], again: Callable[[int], None]) -> threading.Event:
    """Return an event that the first of these signals sets; `again` is called with a signal that has come before.

    Another signal than the first is no repetition: systemd may send two kinds at once, and Python handles those that
    wait in the order of their numbers. `again` runs in the handler, in the main thread: it may raise, and must take no
    lock. The caller is the main thread.
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
