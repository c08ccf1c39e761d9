"""What a running task is told to do, from whatever thread; its main loop looks here once a round.

    pause      stop reading, finish and commit what was read, stay in the group
    resume     read again
    flush      finish and commit what was read
    stop       the same, and end
    renew      look up anew what was looked up before: credentials, topics, their settings

Pausing and resuming say what is wanted, so only the last of them counts; flushes that wait together are one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """What a task can be told, spelt as on the wire (`keyfold_sink.wire`)."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    RENEW = "renew"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was ordered: how it is to be from now on, and what is to be done once."""

    pause: bool
    flush: bool
    renew: bool = False


class TaskOrders:
    """The orders of one task. `stop` is set by the order to stop; who sets it otherwise gives the same order.

    `pause`: whether the task begins paused, so that it reads nothing before the first order comes.
    """

    def __init__(self, stop: threading.Event, *, pause: bool = False) -> None:
        self.stop = stop
        self._lock = threading.Lock()
        self._pause = pause
        self._flush = False
        self._renew = False

    def give(self, order: Order) -> None:
        """Note an order. May be called from any thread, and never waits."""
        with self._lock:
            if order in {Order.PAUSE, Order.RESUME}:
                self._pause = order is Order.PAUSE
            self._flush |= order is Order.FLUSH
            self._renew |= order is Order.RENEW
        if order is Order.STOP:
            self.stop.set()

    def take(self) -> Wanted:
        """What is wanted now; the orders to flush and to renew are taken with it."""
        with self._lock:
            wanted = Wanted(self._pause, self._flush, self._renew)
            self._flush = self._renew = False
            return wanted
