"""The states of a replica's world, and its rules as switches: every default is right."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from keyfold.log.edits_replica import Following
from keyfold.log.manifest import Token
from tests.model import truth
from tests.model.search import Label

NONE = 0
FOLLOWING = Following("r", "source")
NOBODY = Token(0, "")
STEP_MS = 10_000
IDLE, CHECKED, CLAIMED, LOADED, COPY, PUT, REPORT, LISTED, JUDGED, DELETE, FORGET = range(11)


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """The rules that a replicator follows; every default is right."""

    loads_after_claim: bool = True
    epoch_required: bool = True
    follows_required: bool = True
    plans_again: bool = True
    orphans: Literal["list, source, replica", "source, replica, list", "list, replica", "list, source"] = (
        "list, source, replica"
    )
    own_replaced: bool = True
    waits_for_deletion: bool = True
    copies_purges: bool = True
    draws_claim_ids: bool = True
    pins: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """`rounds`: of each replicator's processes together; `faults`: crashes and time-outs altogether.

    `losses`: how often somebody deletes the replica's manifest by mistake, while no replicator is about to write a
    first one (decision 23 says what may happen then).
    """

    replicators: int = 2
    rounds: int = 2
    faults: int = 0
    losses: int = 0
    reader: bool = False
    timely: bool = True
    gc: bool = True


class Replicator(NamedTuple):
    """One process. `pinned`, `pending`: manifests that it knows and PUTs; `source`: 1 + the version it stands on.

    `claims` counts those of all its processes, where ids are drawn.
    """

    step: int = IDLE
    left: int = 0
    claims: int = 0
    token: Token = NOBODY
    pinned: int = NONE
    pending: int = NONE
    source: int = 0
    names: tuple[str, ...] = ()
    due: tuple[str, ...] = ()


class Reader(NamedTuple):
    """A session at the replica: 0 not begun, 1 open, 2 over."""

    step: int = 0
    began_with: int = 0
    reads: int = 0
    position: int = 0
    latest: truth.State = ()
    start: int = 0


class State(NamedTuple):
    """Everything at one moment. `late`: (base, pending) of commits on the way; `deletes`: names."""

    at: int
    there: frozenset[str]
    pin: int
    manifest: int
    here: frozenset[str]
    replicators: tuple[Replicator, ...]
    late: tuple[tuple[int, int], ...] = ()
    deletes: tuple[str, ...] = ()
    faults: int = 0
    losses: int = 0
    reader: Reader = Reader()


Step = tuple[Label, State]
Commit = tuple[Hashable, ...]
"""An edit by name, with what it is made of."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One replicator's turn in a state."""

    state: State
    at: int

    @property
    def me(self) -> Replicator:
        return self.state.replicators[self.at]

    @property
    def who(self) -> str:
        return f"replicator {self.at}"

    def to(self, after: State, **changed: object) -> State:
        """`after`, with this replicator changed."""
        return self._with(after, self.me._replace(**changed))  # type: ignore[arg-type]  # fields by name, of any type

    def over(self, after: State) -> State:
        """`after`, with a new process in this one's place."""
        return self._with(after, Replicator(left=self.me.left, claims=self.me.claims))

    def _with(self, after: State, mine: Replicator) -> State:
        return after._replace(replicators=(*after.replicators[: self.at], mine, *after.replicators[self.at + 1 :]))
