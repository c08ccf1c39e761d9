"""One partition's commit, fence and collect protocol as a graph of states.

    store       one manifest, replaced by compare-and-set, and a set of objects; strongly consistent.
    on the way  requests whose sender no longer waits for them (it timed out, or it crashed). They land at ANY later
                moment, or never. A lost answer is a time-out whose request lands before the repetition. Each time-out,
                crash and repeated DELETE costs one of `Bounds.faults`.
    writers     prepare a commit on the newest manifest that they know (one step), PUT it (one step): everything may
                happen in between. A 412, the read after it, and the edit applied again are one step: the 412 would be
                the same at any later moment, so it may as well come right before the read. All requests with an old
                ETag are dead, so only those on the newest manifest are kept in a state.
    time        no clock. A wait that began at the stamp t is over as soon as no reader's session that was open at t is
                open any more: there are two moments, before the reader and after it has begun. That is exactly what
                the real manifest's milliseconds would allow with waits longer than every session.
    reader      pins a manifest, reads record after record, and at any moment may go on in the newest manifest under
                the real rule of `keyfold.read.position`. What it has folded at its end must be what Kafka's records
                up to there fold to.
    lease       a condition, not a time: a claim over another's lease finds it either held or run out.

Manifests, entries and replacements are numbers of `Book`; the next manifest is what the real `Committer` would PUT.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfold.log.commit import _landed
from keyfold.log.names import Role
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from tests.model import truth
from tests.model.book import Book
from tests.model.careless import careless
from tests.model.rules import Bounds, Rules
from tests.model.search import Label

# Parts of a state are small non-negative numbers (in CPython hash(-1) == hash(-2)).
NONE, STALE = 0, 1
"""No commit prepared; a commit prepared on a manifest that is not the newest any more. Above: manifest numbers."""

STEP_MS = 10_000
"""The time between the two moments that there are, and the length of every wait."""

IDLE, CLAIM, READY, UPLOAD, COMMIT, FORGET, EXPIRE = range(7)


class Writer(NamedTuple):
    """A sink or a compactor.

    left: assignments or passes that it may still begin; epoch: claimed, or while it claims the one that it saw;
    pin: 1 + the time at which it saw the newest manifest, 0 if another came since; pending: the manifest that it PUTs;
    at, to: a sink's segment, or a compactor's plan (or what it forgets or expires) and how many parts it may still
    commit.
    """

    step: int
    left: int
    epoch: int = 0
    pin: int = NONE
    pending: int = NONE
    at: int = 0
    to: int = 0
    attempt: int = 0
    turn: int = 0


Ahead = tuple[int, tuple[int, ...], int]


class Reader(NamedTuple):
    """A session: 0 not begun, 1 open, 2 over. `segments` are what it still has to read:
    (object, offsets left, where the range ends); `start` is where the log began when it did."""

    step: int = 0
    anchor: int = 0
    segments: tuple[Ahead, ...] = ()
    position: int = 0
    end: int = 0
    latest: truth.State = ()
    start: int = 0


LANDS, CREATES, DELETES = range(3)
Request = tuple[int, int | tuple[int, ...]]
"""On the way: (LANDS, manifest), (CREATES, objects) or (DELETES, objects)."""


class State(NamedTuple):
    """The whole world at one moment; `lost` are the objects of a manifest that got lost, `expires` what retention may
    still commit."""

    manifest: int
    objects: frozenset[int]
    requests: tuple[Request, ...]
    sinks: tuple[Writer, ...]
    compactors: tuple[Writer, ...]
    reader: Reader
    faults: int
    lost: frozenset[int] = frozenset()
    expires: int = 0


Step = tuple[Label, State]


class Protocol:
    """What sinks, compactors, the network, gc and the reader have in common; `world` puts them together."""

    def __init__(self, kafka: truth.KafkaLog = truth.FOUR, *, rules: Rules | None = None, bounds: Bounds) -> None:
        self.kafka = kafka
        self.rules = Rules() if rules is None else rules
        self.bounds = bounds
        self.book = Book(kafka, careless(self.rules))

    # the pieces of time

    @staticmethod
    def now(state: State) -> int:
        """The time of a stamp that is written now: has the reader begun?"""
        return STEP_MS if state.reader.step else 0

    def due_at(self, state: State) -> tuple[int, int]:
        """(now, wait) in ms: no wait is over while a session that saw its begin is open."""
        if not self.bounds.timely:
            return STEP_MS, 0
        began = STEP_MS if state.reader.step == 2 else 0
        return began + STEP_MS + STORE_TIME_RESOLUTION_MS, STEP_MS

    # the pieces of a commit

    def landed(self, state: State, manifest: int) -> State:
        """The state after a manifest PUT has landed: whatever else was meant for the old ETag is dead."""
        return state._replace(
            manifest=manifest,
            requests=tuple(r for r in state.requests if r[0] != LANDS),
            sinks=tuple(map(_outdated, state.sinks)),
            compactors=tuple(map(_outdated, state.compactors)),
        )

    def is_mine(self, state: State, role: Role, who: int, objects: frozenset[str]) -> bool:
        """What a writer concludes after 412 from the manifest that it reads."""
        manifest = self.book.manifest[state.manifest]
        named = objects if self.rules.landed_by == "commit id and objects" else frozenset[str]()
        if manifest.role(role).commit_id == _commit_id(who):
            return True
        return _landed(manifest, role, _commit_id(who), named)

    def settled(self, state: State) -> State:
        """The canonical form: a commit id that no writer waits for is cleared."""
        commit_ids = self.book.commit_ids

        def canonical(number: int) -> int:
            sink, compactor = commit_ids[number]
            if sink and not state.sinks[sink - 1].pending:
                number = self.book.anonymous(number, Role.SINK)
            if compactor and not state.compactors[compactor - 1].pending:
                number = self.book.anonymous(number, Role.COMPACTOR)
            return number

        def settle(writer: Writer) -> Writer:
            pending = writer.pending
            return (
                writer
                if pending <= STALE or canonical(pending) == pending
                else writer._replace(pending=canonical(pending))
            )

        requests = state.requests
        if requests:
            requests = tuple(
                sorted((LANDS, canonical(r[1])) if r[0] == LANDS else r for r in requests)  # type: ignore[arg-type]  # told apart by their first element
            )
        return State(
            canonical(state.manifest),
            state.objects,
            requests,
            tuple(map(settle, state.sinks)),
            tuple(map(settle, state.compactors)),
            state.reader,
            state.faults,
            state.lost,
            state.expires,
        )

    def put(self, state: State, blobs: tuple[int, ...]) -> tuple[State, str]:
        """Create objects: the state after it, and "", "there" (the same bytes) or "taken" (other bytes)."""
        if state.objects.issuperset(blobs):
            return state, "there"
        names = {self.book.blob(b).name for b in blobs}
        rivals = frozenset(o for o in state.objects if self.book.blob(o).name in names)
        if rivals and self.rules.create_only:
            return state, "taken"
        return state._replace(objects=(state.objects - rivals) | frozenset(blobs)), ""

    def without(self, state: State, names: frozenset[str]) -> frozenset[int]:
        """The objects but those of these names."""
        return frozenset(o for o in state.objects if self.book.blob(o).name not in names)


def set_writer(writers: tuple[Writer, ...], at: int, writer: Writer) -> tuple[Writer, ...]:
    """The writers with another one at a place."""
    return (*writers[:at], writer, *writers[at + 1 :])


def _outdated(writer: Writer) -> Writer:
    if writer.pin == NONE and writer.pending <= STALE:
        return writer
    return writer._replace(pin=NONE, pending=STALE if writer.pending else NONE)


def _commit_id(who: int) -> str:
    return f"{who:032x}"
