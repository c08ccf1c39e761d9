"""Breadth first through all states, and the shortest way to the first wrong one.

States are remembered by their 64-bit hash alone, with their parent's: a run of a million states fits into a few
hundred MB. The way back is found by walking forward again along the remembered hashes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tests.model.book import Violation

S = TypeVar("S", bound=Hashable)

Label = tuple[object, ...]
"""What happened, in parts that are joined only when somebody reads them."""


class World(Protocol[S]):
    """Something that has states."""

    def initial(self) -> S: ...
    def steps(self, state: S) -> Iterator[tuple[Label, S]]: ...
    def check(self, state: S) -> None: ...
    def describe(self, label: Label) -> str: ...


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: `violation` and the `trace` to it, or all (`is_complete`) states visited without one."""

    states: int
    steps: int
    seconds: float
    is_complete: bool
    violation: str = ""
    trace: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.violation

    def __str__(self) -> str:
        outcome = f"VIOLATED: {self.violation}" if self.violation else ("holds" if self.is_complete else "no violation")
        rate = self.states / self.seconds if self.seconds else 0
        head = f"{outcome} ({self.states} states, {self.steps} steps, {self.seconds:.1f} s, {rate:.0f} states/s)"
        return "\n".join([head, *(f"  {n:2}. {line}" for n, line in enumerate(self.trace, 1))])


def explore(world: World[S], *, limit: int = 10_000_000, see: Callable[[S], None] | None = None) -> Result:
    """Visit every state once, at most `limit` of them; stop at the first violation. `see` is shown each state."""
    began = time.perf_counter()
    first = world.initial()
    parents: dict[int, int] = {hash(first): 0}
    queue = deque([first])
    steps = 0

    def result(violation: str = "", trace: tuple[str, ...] = (), *, is_complete: bool = False) -> Result:
        return Result(len(parents), steps, time.perf_counter() - began, is_complete, violation, trace)

    world.check(first)
    while queue:
        state = queue.popleft()
        if see is not None:
            see(state)
        at = hash(state)
        last: Label = ()
        try:
            for label, after in world.steps(state):
                steps, last = steps + 1, label
                key = hash(after)
                if key not in parents:
                    parents[key] = at
                    world.check(after)
                    queue.append(after)
        except Violation as error:
            told = error.step or world.describe(last)
            return result(str(error), (*_trace(world, parents, at), told))
        if len(parents) > limit:
            return result()
    return result(is_complete=True)


def _trace(world: World[S], parents: dict[int, int], at: int) -> tuple[str, ...]:
    path = [at]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    path.reverse()
    state = world.initial()
    lines = []
    for key in path[1:]:
        label, state = next((label, after) for label, after in world.steps(state) if hash(after) == key)
        lines.append(world.describe(label))
    return tuple(lines)
