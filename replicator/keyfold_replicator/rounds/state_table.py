"""The states of all partitions of a replica, while the rounds of many threads change them.

A state is replaced as a whole, so a reader gets one that was true at some moment. `take_changes` says whether anything
is worth publishing; a round that found nothing new is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from keyfold.log.names import Place
from keyfold_replicator.state.states import NEVER_MS, PartitionState


class StateTable:
    """States by partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[Place, PartitionState] = {}
        self._is_changed = False

    def change(self, place: Place, change: Callable[[PartitionState], PartitionState]) -> PartitionState:
        """Replace a partition's state by `change` of it. A new partition is pending."""
        with self._lock:
            before = self._states.get(place)
            after = change(before or PartitionState(place))
            self._states[place] = after
            self._is_changed = self._is_changed or before is None or _worth(before) != _worth(after)
            return after

    def drop(self, place: Place) -> None:
        """Remove a partition that is no longer covered."""
        with self._lock:
            self._is_changed = self._states.pop(place, None) is not None or self._is_changed

    def state(self, place: Place) -> PartitionState:
        """Return one partition's state."""
        with self._lock:
            return self._states.get(place) or PartitionState(place)

    def states(self) -> tuple[PartitionState, ...]:
        """Return all states, by topic and partition."""
        with self._lock:
            return tuple(sorted(self._states.values(), key=lambda s: (s.place.topic, s.place.partition)))

    def take_changes(self) -> bool:
        """Whether something has changed since the last call."""
        with self._lock:
            found, self._is_changed = self._is_changed, False
            return found


def _worth(state: PartitionState) -> PartitionState:
    return replace(state, last_attempt_ms=NEVER_MS, next_attempt_ms=NEVER_MS, last_success_ms=NEVER_MS)
