"""What a sink and a compactor do alike: claim an epoch, prepare a commit, PUT it, and conclude from the answer."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.log.names import Role
from tests.model.book import GONE, EditKey
from tests.model.careless import still_listed
from tests.model.protocol import (
    CLAIM,
    IDLE,
    LANDS,
    NONE,
    READY,
    STALE,
    Protocol,
    State,
    Step,
    Writer,
    set_writer,
)


class Writers(Protocol):
    """Claims and commits of both roles."""

    def begun(self, state: State, role: Role, at: int, claiming: Writer, ready: Writer) -> State:
        """The state in which a writer that has just claimed is ready."""
        raise NotImplementedError

    def claim(
        self, state: State, role: Role, at: int, writer: Writer, words: str, *, again: bool = False
    ) -> Iterator[Step]:
        """Prepare a claim on the newest manifest; a lease of another is found held, or run out."""
        manifest = self.book.manifest[state.manifest]
        expected = writer.epoch if again and self.rules.claim_keeps_expected_epoch else manifest.role(role).epoch
        holder = f"c{at}" if role is Role.COMPACTOR and self.bounds.leases else ""
        for has_expired in (False, True):
            key = ("claim", role, expected, holder, has_expired)
            pending = self.book.next(state.manifest, self.now(state), role, at + 1, key)
            if isinstance(pending, int):
                claiming = writer._replace(step=CLAIM, epoch=expected, pending=pending, pin=NONE)
                yield (f"{words}, prepares a claim",), self.with_writer(state, role, at, claiming)
                return
            if pending != "LeaseHeld":
                yield (f"{words}: {pending}, stops",), self.with_writer(state, role, at, idle(writer))
                return
            yield (f"{words}: LeaseHeld, stops",), self.with_writer(state, role, at, idle(writer))
            words += ", the lease has run out"

    def claiming(self, state: State, role: Role, at: int, writer: Writer, who: str) -> Iterator[Step]:
        if state.manifest == GONE:
            yield (f"{who} finds the manifest gone: stops",), self.with_writer(state, role, at, idle(writer))
        elif writer.pending == STALE:
            if self.is_mine(state, role, at + 1, frozenset()):
                yield (f"{who} finds its claim landed",), self._claimed(state, role, at, writer)
            else:
                yield from self.claim(state, role, at, writer, f"{who} gets 412 on its claim, reads", again=True)
        else:
            epoch = self.book.manifest[writer.pending].role(role).epoch
            after = self.landed(state, writer.pending)
            yield (f"{who} claims epoch {epoch}",), self._claimed(after, role, at, writer)
            if (LANDS, writer.pending) in state.requests:
                yield (f"{who} gives its claim up",), self.with_writer(state, role, at, idle(writer))
            if state.faults:
                yield (f"{who}'s claim times out",), self.late(state, (LANDS, writer.pending))

    def _claimed(self, state: State, role: Role, at: int, writer: Writer) -> State:
        epoch = self.book.manifest[state.manifest].role(role).epoch
        ready = writer._replace(step=READY, epoch=epoch, pin=1 + self.now(state), pending=NONE, attempt=0)
        return self.begun(state, role, at, writer, ready)

    def commit(
        self,
        state: State,
        role: Role,
        at: int,
        writer: Writer,
        who: str,
        key: EditKey,
        won: Writer,
        mine: frozenset[str],
    ) -> Iterator[Step]:
        """PUT a prepared commit, or, where another came first, read and conclude; `won` is the writer afterwards."""
        words = str(key[0])
        if state.manifest == GONE:
            yield (f"{who} finds the manifest gone: stops",), self.with_writer(state, role, at, idle(writer))
            return
        if writer.pending != STALE:
            after = self.landed(state, writer.pending)
            pinned = won._replace(pin=1 + self.now(state)) if won.step else won
            yield (f"{who} commits its {words}",), self.with_writer(after, role, at, pinned)
            if (LANDS, writer.pending) in state.requests:
                unknown = state._replace(requests=self._unclaimed(state, role, writer.pending))
                yield (f"{who} gets CommitUnknown and calls again",), unknown
            if state.faults:
                yield (f"{who}'s {words} times out",), self.late(state, (LANDS, writer.pending))
                if self.rules.concludes_from_a_read and mine:
                    late = self.late(state, (LANDS, writer.pending))._replace(objects=self.without(state, mine))
                    again = writer._replace(step=READY, pending=NONE, to=0, attempt=writer.attempt + 1)
                    told = f"{who}'s {words} times out; a GET shows the old manifest, it removes its upload"
                    yield (told,), self.with_writer(late, role, at, again)
            return
        if self.is_mine(state, role, at + 1, mine):
            pinned = won._replace(pin=1 + self.now(state)) if won.step else won
            yield (f"{who} gets 412, finds its {words} landed",), self.with_writer(state, role, at, pinned)
            return
        pending = self._edited(state, role, at, self.now(state), key)
        if isinstance(pending, str):
            objects = self.without(state, mine) if self.rules.removes_what_it_thinks_lost else state.objects
            told = ", removes its upload" if objects != state.objects else ""
            stopped = self.with_writer(state, role, at, idle(writer))._replace(objects=objects)
            yield (f"{who} gets 412, reads: {pending}, stops{told}",), stopped
        else:
            again = writer._replace(pending=pending, pin=NONE)
            yield (f"{who} gets 412, reads, applies its {words} again",), self.with_writer(state, role, at, again)

    def _edited(self, state: State, role: Role, at: int, seen: int, key: EditKey) -> int | str:
        if key[0] == "replace" and not self.rules.still_listed_required:
            _, epoch, number, *rest = key
            assert isinstance(number, int)
            manifest = self.book.manifest[state.manifest]
            left = still_listed(manifest, self.book.replacement(number))
            key = ("replace", epoch, self.book.add_replacement(left), *rest)
        return self.book.next(state.manifest, seen, role, at + 1, key)

    def prepare(self, state: State, role: Role, at: int, writer: Writer, key: EditKey) -> State:
        """Prepare a commit on the manifest that the writer has pinned; on an old one that is a PUT that gets 412."""
        if writer.pin == NONE:
            return self.with_writer(state, role, at, writer._replace(pending=STALE))
        pending = self._edited(state, role, at, writer.pin - 1, key)
        # What its own manifest refuses would be refused again after reading: let it read.
        pending = STALE if isinstance(pending, str) else pending
        return self.with_writer(state, role, at, writer._replace(pending=pending, pin=NONE))

    def _unclaimed(self, state: State, role: Role, pending: int) -> tuple[tuple[int, int | tuple[int, ...]], ...]:
        at = state.requests.index((LANDS, pending))
        nobodys = (LANDS, self.book.anonymous(pending, role))
        return (*state.requests[:at], nobodys, *state.requests[at + 1 :])

    @staticmethod
    def late(state: State, request: tuple[int, int | tuple[int, ...]]) -> State:
        return state._replace(requests=(*state.requests, request), faults=state.faults - 1)

    @staticmethod
    def with_writer(state: State, role: Role, at: int, writer: Writer) -> State:
        if role is Role.SINK:
            return state._replace(sinks=set_writer(state.sinks, at, writer))
        return state._replace(compactors=set_writer(state.compactors, at, writer))


def idle(writer: Writer) -> Writer:
    """The writer when it has stopped, crashed or come to its end: only what it may still begin is left."""
    return Writer(IDLE, writer.left, turn=writer.turn)
