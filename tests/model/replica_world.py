"""A replica and those who replicate into it, as a graph of states.

    source       goes through a `History`, version after version, whenever it likes, and deletes what it has unlinked at
                 once, but for what a hold protects
    replicators  claim, load, list, copy, commit, tell the source, collect: each request is a step, and everything may
                 happen in between. A commit is the real edit on the real manifest; a 412 is judged as `Committer` does
    on the way   commits and deletions whose sender crashed or no longer waits for them: they land at any later moment,
                 or never. Each costs one of `faults`
    somebody     deletes the replica's manifest by mistake, and the next replicator creates it again
    reader       reads at the replica under the real rules of `keyfold.read.position`

In every state: the replica's manifest is a version that the source had, its objects are there, and it never goes back.
The reader ends with a state that Kafka had. In a timely world it meets no 404.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from keyfold.errors import LogError, OffsetOutOfRange
from keyfold.log import edits_replica as edits
from keyfold.log.commit import _landed
from keyfold.log.edits import Edit, with_commit_id
from keyfold.log.gc import due_names
from keyfold.log.manifest import Hold, Manifest, Token, content, is_over, stamped
from keyfold.read.position import anchor_of, check_resumed
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from tests.model import truth
from tests.model.book import Violation
from tests.model.replica_source import History
from tests.model.replica_states import (
    CHECKED,
    CLAIMED,
    COPY,
    DELETE,
    FOLLOWING,
    FORGET,
    IDLE,
    JUDGED,
    LISTED,
    LOADED,
    NONE,
    PUT,
    REPORT,
    STEP_MS,
    Commit,
    Reader,
    ReplicaBounds,
    ReplicaRules,
    Replicator,
    State,
    Step,
    Turn,
)
from tests.model.search import Label


class ReplicaWorld:
    """See the module."""

    def __init__(self, history: History, bounds: ReplicaBounds, rules: ReplicaRules | None = None) -> None:
        self.history = history
        self.bounds = bounds
        self.rules = rules or ReplicaRules()
        self.manifests: list[Manifest] = [history.versions[0]]
        self._numbers: dict[str, int] = {}
        self._next: dict[Hashable, int | str] = {}
        self._names = [frozenset(s.name for s in m.segments) for m in history.versions]
        self._acts: dict[int, Callable[[Turn], Iterator[Step]]] = {
            IDLE: self._look, CHECKED: self._claim, CLAIMED: self._load, LOADED: self._list, COPY: self._copy,
            REPORT: self._report, LISTED: self._read_source, JUDGED: self._judge, DELETE: self._delete,
        }  # fmt: skip
        self._due_names: dict[tuple[int, int], frozenset[str]] = {}
        self._judged: dict[Hashable, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._needed: dict[int, frozenset[str]] = {}
        self._sound: set[int] = {NONE}
        self._resumes: dict[tuple[int, int, int], bool] = {}

    def initial(self) -> State:
        """Nothing is at the replica yet."""
        one = Replicator(left=self.bounds.rounds)
        return State(
            0,
            self._names[0],
            0,
            NONE,
            frozenset(),
            (one,) * self.bounds.replicators,
            faults=self.bounds.faults,
            losses=self.bounds.losses,
        )

    def describe(self, label: Label) -> str:
        """A step in words."""
        return str(label[0]).format(*label[1:])

    def check(self, state: State) -> None:
        """What holds in every state."""
        missing = self._needs(state.manifest) - state.here
        manifest = self.manifests[state.manifest]
        if missing:
            raise Violation(f"the replica's version {manifest.version} names {sorted(missing)}, not there")
        if state.manifest in self._sound:
            return
        self._sound.add(state.manifest)
        wanted = next(m for m in self.history.versions if m.version == manifest.log_version)
        if content(wanted) != content(manifest) and self.rules.copies_purges:
            raise Violation(f"the replica's version {manifest.version} is no state that the source had")

    def _needs(self, number: int) -> frozenset[str]:
        if number not in self._needed:
            segments = () if number == NONE else self.manifests[number].segments
            self._needed[number] = frozenset(s.name for s in segments)
        return self._needed[number]

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        yield from self._source(state)
        yield from self._network(state)
        yield from self._loss(state)
        for at in range(len(state.replicators)):
            yield from self._replicator(Turn(state, at))
        if self.bounds.reader:
            yield from self._read(state)

    # the source and the network

    def _source(self, state: State) -> Iterator[Step]:
        if state.at + 1 < len(self.history.versions):
            at = state.at + 1
            yield ("the source commits version {}", at), state._replace(at=at, there=state.there | self._names[at])
        for name in sorted(self._due(state.at, state.pin) & state.there):
            yield ("the source deletes {}", _short(name)), state._replace(there=state.there - {name})

    def _due(self, at: int, pin: int) -> frozenset[str]:
        """What the source may delete."""
        if (at, pin) not in self._due_names:
            manifest = self.history.versions[at]
            holds = (Hold("r", self.history.versions[pin - 1].version, 1 << 60),) if pin else ()
            self._due_names[at, pin] = frozenset(due_names(stamped(replace(manifest, holds=holds), 0), STEP_MS, 0))
        return self._due_names[at, pin]

    def _network(self, state: State) -> Iterator[Step]:
        for request in sorted(set(state.late)):
            late = list(state.late)
            late.remove(request)
            if request[0] == state.manifest:
                yield ("a late commit lands",), self._landed(state._replace(late=tuple(late)), request[1])
        for name in sorted(set(state.deletes)):
            left = list(state.deletes)
            left.remove(name)
            yield (
                ("a late DELETE of {} lands", _short(name)),
                state._replace(deletes=tuple(left), here=state.here - {name}),
            )

    def _loss(self, state: State) -> Iterator[Step]:
        is_beginning = any(r.step not in {IDLE, CHECKED} and r.pinned == NONE for r in state.replicators)
        if state.losses and state.manifest != NONE and not is_beginning:
            yield ("the replica's manifest is lost",), state._replace(manifest=NONE, losses=state.losses - 1)

    def _landed(self, state: State, number: int) -> State:
        if state.manifest != NONE and self.manifests[number].log_version < self.manifests[state.manifest].log_version:
            raise Violation("the replica goes back")
        late = tuple(r for r in state.late if r[0] == number)
        return state._replace(manifest=number, late=late)

    # replicators

    def _replicator(self, turn: Turn) -> Iterator[Step]:
        step = turn.me.step
        if step in {PUT, FORGET}:
            me = turn.me
            edit, then = (
                (("mirror", me.token, me.source), REPORT) if step == PUT else (("forget", me.token, me.due), CLAIMED)
            )
            yield from self._commit(turn, edit, then)
        else:
            yield from self._acts[step](turn)
        if step not in {IDLE, CHECKED} and turn.state.faults:
            yield (f"{turn.who} crashes",), turn.over(turn.state)._replace(faults=turn.state.faults - 1)

    def _look(self, turn: Turn) -> Iterator[Step]:
        if turn.me.left:
            early = 0 if self.rules.loads_after_claim else turn.state.at + 1
            yield (f"{turn.who} looks",), turn.to(turn.state, step=CHECKED, pinned=turn.state.manifest, source=early)

    def _claim(self, turn: Turn) -> Iterator[Step]:
        state, me, who = turn.state, turn.me, turn.who
        draws = self.bounds.losses > 0 and self.rules.draws_claim_ids  # without a loss, epochs alone do
        claims, claim_id = (me.claims + 1, f"{turn.at}.{me.claims}") if draws else (0, "")
        if me.pinned == NONE:
            token = Token(edits.FIRST_EPOCH, claim_id)
            yield (f"{who} begins a replica",), turn.to(state, step=CLAIMED, token=token, claims=claims)
            return
        if state.manifest == NONE:
            yield (f"{who} loses the claim with the manifest",), turn.over(state)
            return
        number = self._edited(state, state.manifest, ("claim", self._token(me.pinned), claim_id), turn.at)
        if isinstance(number, str):
            yield (f"{who} loses the claim: {number}",), turn.over(state)
            return
        after = self._landed(state, number)
        token = self._token(number)
        yield (f"{who} claims",), turn.to(after, step=CLAIMED, token=token, claims=claims, pinned=number)

    def _load(self, turn: Turn) -> Iterator[Step]:
        state, me = turn.state, turn.me
        if me.left:
            source = me.source or state.at + 1
            after = turn.to(state, step=LOADED, source=source, left=me.left - 1)
            pin = source if self.rules.pins else state.pin
            yield (f"{turn.who} loads version {{}} of the source", source - 1), after._replace(pin=pin)

    def _list(self, turn: Turn) -> Iterator[Step]:
        names = tuple(sorted(self._names[turn.me.source - 1] - turn.state.here))
        yield (f"{turn.who} lists the replica",), turn.to(turn.state, step=COPY if names else PUT, names=names)

    def _copy(self, turn: Turn) -> Iterator[Step]:
        state, who = turn.state, turn.who
        name, rest = turn.me.names[0], turn.me.names[1:]
        after = turn.to(state, step=COPY if rest else PUT, names=rest)
        if name in state.there:
            yield (f"{who} copies {_short(name)}",), after._replace(here=state.here | {name})
        elif not self.rules.plans_again:
            yield (f"{who} leaves out {_short(name)}",), after
        elif self.rules.pins and self.bounds.replicators == 1:
            raise Violation("a round that pins is thrown back", f"{who} gets 404 on {_short(name)}")
        else:
            after = turn.to(state, step=CLAIMED, source=0, names=())
            yield (f"{who} gets 404 on {_short(name)}, plans again",), after

    def _report(self, turn: Turn) -> Iterator[Step]:
        step = LISTED if self.bounds.gc else CLAIMED
        after = turn.to(turn.state, step=step, source=0, names=tuple(sorted(turn.state.here)))
        yield (f"{turn.who} tells the source, and lists the replica",), after._replace(pin=0)

    def _commit(self, turn: Turn, edit: Commit, then: int) -> Iterator[Step]:
        """PUT the edit made on what is known; after a 412 read, look for one's own commit, make it again or stop."""
        state, me, who = turn.state, turn.me, turn.who
        pending = me.pending or self._edited(state, me.pinned, edit, turn.at)
        if isinstance(pending, str):
            yield (f"{who} stops: {pending}",), turn.over(state)
        elif pending == me.pinned:
            yield (f"{who} has nothing to commit",), turn.to(state, step=then, pending=NONE)
        elif me.pinned == state.manifest:
            after = self._landed(state, pending)
            yield (f"{who} commits {edit[0]}",), turn.to(after, step=then, pinned=pending, pending=NONE)
            if state.faults:
                sent = state._replace(late=tuple(sorted((*state.late, (me.pinned, pending)))), faults=state.faults - 1)
                yield (f"{who} gets no answer to its commit",), turn.to(sent, pending=pending)
                yield (f"{who} crashes, its commit is on its way",), turn.over(sent)
        elif me.pending and self._is_mine(state.manifest, turn.at):
            after = turn.to(state, step=then, pinned=state.manifest, pending=NONE)
            yield (f"{who} finds that its commit has landed",), after
        elif state.manifest == NONE:
            yield (f"{who} gets 404: the manifest is lost",), turn.over(state)
        elif me.pinned == NONE:
            yield (f"{who} finds another's first manifest",), turn.over(state)
        else:
            again = self._edited(state, state.manifest, edit, turn.at)
            if isinstance(again, str):
                yield (f"{who} gets 412 and stops: {again}",), turn.over(state)
            else:
                after = turn.to(state, pinned=state.manifest, pending=NONE)
                yield (f"{who} gets 412, makes the edit again",), after

    def _read_source(self, turn: Turn) -> Iterator[Step]:
        at = turn.state.at
        yield (f"{turn.who} reads version {{}} of the source", at), turn.to(turn.state, step=JUDGED, source=at + 1)

    def _judge(self, turn: Turn) -> Iterator[Step]:
        state, me, who = turn.state, turn.me, turn.who
        manifest = self.manifests[state.manifest]
        looks = self.rules.orphans != "list, source" and self.rules.epoch_required
        if looks and (manifest.replica is None or manifest.replica.token != me.token):
            yield (f"{who} finds itself fenced",), turn.over(state)
            return
        now_wait = self._due_at(state)
        listed = state.here if self.rules.orphans == "source, replica, list" else frozenset(me.names)
        key = (state.manifest, now_wait, listed, me.source)
        if key not in self._judged:
            self._judged[key] = self._doomed(manifest, *now_wait, listed, self._names[me.source - 1])
        due, doomed = self._judged[key]
        if doomed:
            yield (f"{who} judges",), turn.to(state, step=DELETE, source=0, names=doomed, due=due)
        else:
            yield (f"{who} finds nothing to delete",), turn.to(state, step=CLAIMED, source=0, names=(), due=())

    def _delete(self, turn: Turn) -> Iterator[Step]:
        state, me, who = turn.state, turn.me, turn.who
        name, rest = me.names[0], me.names[1:]
        after = turn.to(state, step=DELETE if rest else (FORGET if me.due else CLAIMED), names=rest)
        yield (f"{who} deletes {_short(name)}",), after._replace(here=state.here - {name})
        if state.faults:
            sent = state._replace(deletes=tuple(sorted((*state.deletes, name))), faults=state.faults - 1)
            yield (f"{who} crashes, its DELETE of {_short(name)} is on its way",), turn.over(sent)

    def _doomed(
        self, manifest: Manifest, now_ms: int, wait_ms: int, listed: frozenset[str], source: frozenset[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is due, and all that goes."""
        known = manifest
        if not self.rules.waits_for_deletion:
            known, wait_ms = stamped(manifest, now_ms), 0
        replaced = {r.name for r in manifest.replaced if not r.name.startswith("_index")}
        due = {r.name for r in known.replaced if r.name in replaced and is_over(r.unlinked_at_ms, wait_ms, now_ms)}
        kept = {s.name for s in manifest.segments} | replaced
        if self.rules.orphans != "list, replica":
            kept |= source
        return tuple(sorted(due)), tuple(sorted(due | (listed - kept)))

    # commits

    def _edited(self, state: State, base: int, edit: Commit, at: int) -> int | str:
        now_ms = STEP_MS if state.reader.step else 0
        key = (base, edit, at, now_ms)
        known = self._next.get(key)
        if known is None:
            try:
                known = self._number(self._made(base, edit, at, now_ms))
            except LogError as error:
                known = type(error).__name__
            self._next[key] = known
        return known

    def _made(self, base: int, edit: Commit, at: int, now_ms: int) -> Manifest:
        if base == NONE:
            assert edit[0] == "mirror"
            assert isinstance(edit[2], int)
            source = self.history.versions[edit[2] - 1]
            return edits.first_mirror(source, FOLLOWING, _commit_id(at), edit[1].claim_id)  # type: ignore[attr-defined]  # told apart by their first element
        manifest = stamped(self.manifests[base], now_ms)
        if edit[0] == "mirror" and isinstance(edit[2], int):
            source = self.history.versions[edit[2] - 1]
            edits.require_epoch(manifest, edit[1]) if self.rules.epoch_required else None  # type: ignore[arg-type]  # told apart by their first element
            if edits.same_content(source, manifest):
                return self.manifests[base]
        edited = self._edit(edit)(manifest, now_ms)
        return with_commit_id(replace(edited, version=manifest.version + 1), "replicator", _commit_id(at))

    def _edit(self, edit: Commit) -> Edit:
        def careless(manifest: Manifest, now_ms: int) -> Manifest:
            state = edits.require_replica(manifest)
            if edit[0] == "claim":
                return edits.claim_replica(edit[1], FOLLOWING, edit[2])(manifest, now_ms)  # type: ignore[arg-type]  # told apart by their first element
            if not self.rules.epoch_required:
                token: Token = edit[1]  # type: ignore[assignment]  # told apart by their first element
                manifest = replace(manifest, replica=replace(state, epoch=token.epoch, claim_id=token.claim_id))
            if edit[0] == "forget":
                return edits.forget(edit[1], edit[2])(manifest, now_ms)  # type: ignore[arg-type]  # told apart by their first element
            source = self.history.versions[edit[2] - 1]  # type: ignore[operator]  # told apart by their first element
            if not self.rules.copies_purges:
                source = replace(source, purged_to=-1, purged_epoch=0)
            if self.rules.follows_required:
                made = edits.mirror(edit[1], source)(manifest, now_ms)  # type: ignore[arg-type]  # told apart by their first element
            else:
                made = edits._mirrored(manifest, source, now_ms)
            return made if self.rules.own_replaced else replace(made, replaced=())

        return careless

    def _number(self, manifest: Manifest) -> int:
        key = repr(manifest)
        if key not in self._numbers:
            self._numbers[key] = len(self.manifests)
            self.manifests.append(manifest)
        return self._numbers[key] if manifest is not self.manifests[0] else NONE

    def _token(self, number: int) -> Token:
        return edits.require_replica(self.manifests[number]).token

    def _is_mine(self, number: int, at: int) -> bool:
        return number != NONE and _landed(self.manifests[number], "replicator", _commit_id(at), frozenset())

    def _due_at(self, state: State) -> tuple[int, int]:
        """(now, wait): no wait is over while a session that saw its begin is open."""
        if not self.bounds.timely:
            return STEP_MS, 0
        began = STEP_MS if state.reader.step == 2 else 0
        return began + STEP_MS + STORE_TIME_RESOLUTION_MS, STEP_MS

    # the reader

    def _read(self, state: State) -> Iterator[Step]:
        reader, number = state.reader, state.manifest
        if reader.step == 0 and number != NONE:
            start = self.manifests[number].log_start_offset
            begun = Reader(1, number, number, start, (), start)
            yield (
                ("the reader pins the replica's version {}", self.manifests[number].version),
                state._replace(reader=begun),
            )
        if reader.step != 1:
            return
        yield from self._read_on(state)
        if number != reader.reads:
            may = self._may_resume(reader, number)
            told = "the reader goes on at {} in the newest version" if may else "the reader is refused at {}"
            after = reader._replace(reads=number) if may else Reader(2)
            yield (told, reader.position), state._replace(reader=after)

    def _read_on(self, state: State) -> Iterator[Step]:
        reader = state.reader
        manifest = self.manifests[reader.reads]
        for segment in manifest.segments:
            rows = [o for o, _ in self.history.rows[segment.name] if o >= reader.position]
            if not rows:
                continue
            if segment.name not in state.here:
                if self.bounds.timely:
                    raise Violation(f"404 on {_short(segment.name)} for a timely reader", "the reader reads")
                return
            latest = dict(reader.latest)
            record = self.history.kafka[rows[0]]
            assert record is not None
            latest.pop(record[0], None)
            if record[1] is not None:
                latest[record[0]] = rows[0]
            position = rows[0] + 1 if rows[1:] else segment.next_offset
            after = reader._replace(position=position, latest=tuple(sorted(latest.items())))
            yield ("the reader reads {}", rows[0]), state._replace(reader=after)
            return
        end = manifest.next_offset
        expected = truth.fold(self.history.kafka, truth.offsets_between(self.history.kafka, reader.start, end))
        if reader.latest != expected:
            raise Violation(
                f"the reader ends with {dict(reader.latest)}, Kafka has {dict(expected)}", "the reader ends"
            )
        yield ("the reader ends",), state._replace(reader=Reader(2))

    def _may_resume(self, reader: Reader, number: int) -> bool:
        key = (reader.began_with, reader.position, number)
        if key not in self._resumes:
            try:
                check_resumed(anchor_of(self.manifests[reader.began_with]), reader.position, self.manifests[number])
                self._resumes[key] = True
            except OffsetOutOfRange:
                self._resumes[key] = False
        return self._resumes[key]


def _commit_id(at: int) -> str:
    return f"{at + 1:032x}"


def _short(name: str) -> str:
    base, epoch, rest = name.split("-")
    return f"{int(base)}-{int(epoch)}-{rest[0]}"
