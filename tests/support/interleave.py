"""Several actors side by side, one step at a time, in an order that a seed decides.

    plays = Interleaving(Random(seed))
    plays.add("sink", lambda: sink.run())           each actor is a thread of its own
    store = FaultyStore(inner, on_call=plays.pause) whoever is about to make a call waits for his turn
    plays.run()                                     until all have ended; raises what an actor raised

Only one actor runs at any moment, so what happens is decided by the seed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


@dataclass(eq=False)
class _Actor:
    name: str
    thread: threading.Thread
    go: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False
    error: BaseException | None = None


class Interleaving:
    """See the module."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._actors: list[_Actor] = []
        self._here = threading.local()
        self._waiting = threading.Event()
        self.order: list[str] = []

    def add(self, name: str, act: Callable[[], object]) -> None:
        """An actor that begins when the play does."""

        def body() -> None:
            self._here.actor = actor
            self._wait(actor)
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - a crash is one, and it goes to who plays
                actor.error = error
            actor.is_over = True
            self._waiting.set()

        actor = _Actor(name, threading.Thread(target=body, name=name, daemon=True))
        self._actors.append(actor)

    def pause(self, _call: object = None) -> None:
        """Let other actors go first. Does nothing outside of an actor."""
        actor = getattr(self._here, "actor", None)
        if actor is not None:
            self._wait(actor)

    def run(self) -> None:
        """Play to the end."""
        for actor in self._actors:
            self._waiting.clear()
            actor.thread.start()
            self._waiting.wait()
        while playing := [actor for actor in self._actors if not actor.is_over]:
            actor = self._random.choice(playing)
            self.order.append(actor.name)
            self._waiting.clear()
            actor.go.set()
            self._waiting.wait()
            if actor.error is not None:
                raise actor.error
        for actor in self._actors:
            actor.thread.join()

    def _wait(self, actor: _Actor) -> None:
        self._waiting.set()
        actor.go.wait()
        actor.go.clear()
