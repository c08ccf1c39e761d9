"""Who acts in the model: the network, the sinks, the compactors, the collector. See `protocol` for the world's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from keyfold.log.manifest import Manifest
from keyfold.log.names import ObjectName, Role, parse_name
from keyfold_compactor.janitor import due_names, orphan_names
from tests.model import passes, truth
from tests.model.book import GONE, EditKey, Violation, short
from tests.model.careless import kept_name, still_listed
from tests.model.protocol import (
    CLAIM,
    COMMIT,
    CREATES,
    DELETES,
    FORGET,
    IDLE,
    LANDS,
    NONE,
    READY,
    STALE,
    UPLOAD,
    Protocol,
    Reader,
    State,
    Step,
    Writer,
    set_writer,
)
from tests.model.search import Label


class World(Protocol):
    """The model: `initial`, `steps` and `check` for `search.explore`."""

    def initial(self) -> State:
        """The log as `Bounds.stored` says, written by a sink of epoch 1."""
        manifest, objects = self.book.fresh, frozenset[int]()
        if self.bounds.stored:
            value = replace(self.book.manifest[manifest], last_epoch=1)
            value = replace(value, sink=replace(value.sink, epoch=1))
            manifest = self.book.add_manifest(value)
        base = 0
        for attempt, end in enumerate(self.bounds.stored):
            entry, blobs = self._sink_entry(base, end, 1, attempt)
            number = self.book.next(manifest, 0, Role.SINK, 0, ("append", 1, entry, base, end))
            assert isinstance(number, int)
            manifest, objects, base = self.book.anonymous(number, Role.SINK), objects | frozenset(blobs), end
        return State(
            manifest,
            objects,
            (),
            (Writer(IDLE, self.bounds.starts),) * self.bounds.sinks,
            (Writer(IDLE, self.bounds.passes),) * self.bounds.compactors,
            Reader(),
            self.bounds.faults,
        )

    def check(self, state: State) -> None:
        """The invariants of the store; the reader's are checked where it reads."""
        if not state.objects >= state.lost:
            gone = [short(self.book.blob(b).name) for b in state.lost - state.objects]
            raise Violation(f"an object of the log whose manifest was lost is deleted: {gone}")
        if state.manifest == GONE:
            return
        missing = self.book.needs(state.manifest) - state.objects
        if missing:
            names = {self.book.blob(o).name for o in state.objects}
            told = [short(self.book.blob(b).name) for b in sorted(missing)]
            changed = all(self.book.blob(b).name in names for b in missing)
            raise Violation(f"the manifest names {told}, which {'has other bytes' if changed else 'is not there'}")

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        for label, after in self._steps(state):
            yield label, self.settled(after)

    def describe(self, label: Label) -> str:
        """A step in words."""
        text, *parts = label
        assert isinstance(text, str)
        return text.format(*(self._told(part) for part in parts))

    def _told(self, part: object) -> object:
        if isinstance(part, tuple):
            return ", ".join(str(self.book.blob(b)) for b in part)
        return part

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self._network(state)
        if self.bounds.manifest_may_be_lost and state.manifest != GONE and not state.lost:
            needed = self.book.needs(state.manifest)
            if needed:
                yield ("the manifest is lost",), self.landed(state, GONE, lost=needed)
        for at in range(len(state.sinks)):
            yield from self._sink(state, at)
        for at in range(len(state.compactors)):
            yield from self._compactor(state, at)
        if self.bounds.collector and state.manifest != GONE and all(r[0] != DELETES for r in state.requests):
            yield from self._collector(state)
        if self.bounds.reader:
            yield from self.read_steps(state)

    # the network

    def _network(self, state: State) -> Iterator[Step]:
        for at, request in enumerate(state.requests):
            if at and state.requests[at - 1] == request:
                continue
            left = state._replace(requests=state.requests[:at] + state.requests[at + 1 :])
            kind, what = request
            if kind == LANDS:
                assert isinstance(what, int)
                yield ("a late manifest PUT lands",), self.landed(left, what)
            elif kind == CREATES:
                assert isinstance(what, tuple)
                after, refused = self.put(left, what)
                yield ("a late upload of {} " + ("lands" if not refused else "gets 412"), what), after
            else:
                assert isinstance(what, tuple)
                gone = frozenset(self.book.blob(b).name for b in what)
                objects = self.without(left, gone)
                yield ("DELETE of {} lands", what), left._replace(objects=objects)
                if state.faults:
                    again = state._replace(objects=objects, faults=state.faults - 1)
                    yield ("DELETE of {} lands and is sent again", what), again

    # the collector

    def _collector(self, state: State) -> Iterator[Step]:
        """It decides by the manifest that it reads; each DELETE lands whenever it likes, a segment's with its index's."""
        manifest = self.book.manifest[state.manifest]
        named: dict[str, list[int]] = {}
        for blob in sorted(state.objects):
            named.setdefault(self.book.blob(blob).name, []).append(blob)
        now, delay = self.due_at(state)
        due = set(due_names(manifest, now, delay))
        if not self.rules.waits_for_deletion:
            due = {r.name for r in manifest.replaced}
        orphans = set(self._orphans(list(named), manifest))
        stems: dict[tuple[str, str], list[int]] = {}
        for name in sorted((due | orphans) & named.keys()):
            stem = name.removeprefix("_index/").split(".", maxsplit=1)[0]
            stems.setdefault(("replaced" if name in due else "orphan", stem), []).extend(named[name])
        for (kind, _), blobs in stems.items():
            request = (DELETES, tuple(blobs))
            yield (
                (f"the collector deletes {kind} {{}}", tuple(blobs)),
                state._replace(requests=(*state.requests, request)),
            )

    def _orphans(self, names: list[str], manifest: Manifest) -> list[str]:
        if self.rules.orphans == "role":
            return orphan_names(names, manifest)
        kept = manifest.object_names() | {r.name for r in manifest.replaced}
        unnamed = [(name, parse_name(name)) for name in names if name not in kept]
        if self.rules.orphans == "never":
            return []
        below = 1 << 30 if self.rules.orphans == "age" else manifest.compactor.epoch
        return [name for name, parsed in unnamed if parsed is not None and parsed.epoch < below]

    # both kinds of writers

    def _claim(
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
                yield (f"{words}, prepares a claim",), self._with(state, role, at, claiming)
                return
            if pending != "LeaseHeld":
                yield (f"{words}: {pending}, stops",), self._with(state, role, at, _idle(writer))
                return
            yield (f"{words}: LeaseHeld, stops",), self._with(state, role, at, _idle(writer))
            words += ", the lease has run out"

    def _claiming(self, state: State, role: Role, at: int, writer: Writer, who: str) -> Iterator[Step]:
        if state.manifest == GONE:
            yield (f"{who} finds the manifest gone: stops",), self._with(state, role, at, _idle(writer))
        elif writer.pending == STALE:
            if self.is_mine(state, role, at + 1, frozenset()):
                yield (f"{who} finds its claim landed",), self._claimed(state, role, at, writer)
            else:
                yield from self._claim(state, role, at, writer, f"{who} gets 412 on its claim, reads", again=True)
        else:
            epoch = self.book.manifest[writer.pending].role(role).epoch
            after = self.landed(state, writer.pending)
            yield (f"{who} claims epoch {epoch}",), self._claimed(after, role, at, writer)
            if (LANDS, writer.pending) in state.requests:
                yield (f"{who} gives its claim up",), self._with(state, role, at, _idle(writer))
            if state.faults:
                yield (f"{who}'s claim times out",), self._late(state, (LANDS, writer.pending))

    def _claimed(self, state: State, role: Role, at: int, writer: Writer) -> State:
        manifest = self.book.manifest[state.manifest]
        epoch = manifest.role(role).epoch
        ready = writer._replace(step=READY, epoch=epoch, pin=1 + self.now(state), pending=NONE, attempt=0)
        if role is Role.SINK:
            self._check_owner(state, at, writer)
            if writer.step == CLAIM and writer.attempt:  # keeps the upload of its older epoch (W8)
                return self._prepare_append(state, at, ready._replace(attempt=writer.attempt))
            ready = ready._replace(at=manifest.next_offset, to=0)
        return self._with(state, role, at, ready)

    def _check_owner(self, state: State, at: int, writer: Writer) -> None:
        later = [n for n, s in enumerate(state.sinks) if s.turn > writer.turn and s.step >= READY]
        if self.bounds.watch_owner and later:
            message = f"sink{at} fences sink{later[0]}, to whom the partition was assigned after it"
            raise Violation(message, f"sink{at} claims")

    def _commit(
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
            yield (f"{who} finds the manifest gone: stops",), self._with(state, role, at, _idle(writer))
            return
        if writer.pending != STALE:
            after = self.landed(state, writer.pending)
            pinned = won._replace(pin=1 + self.now(state)) if won.step else won
            yield (f"{who} commits its {words}",), self._with(after, role, at, pinned)
            if (LANDS, writer.pending) in state.requests:
                unknown = state._replace(requests=self._unclaimed(state, role, writer.pending))
                yield (f"{who} gets CommitUnknown and calls again",), unknown
            if state.faults:
                yield (f"{who}'s {words} times out",), self._late(state, (LANDS, writer.pending))
                if self.rules.concludes_from_a_read and mine:
                    late = self._late(state, (LANDS, writer.pending))._replace(objects=self.without(state, mine))
                    again = writer._replace(step=READY, pending=NONE, to=0, attempt=writer.attempt + 1)
                    told = f"{who}'s {words} times out; a GET shows the old manifest, it removes its upload"
                    yield (told,), self._with(late, role, at, again)
            return
        if self.is_mine(state, role, at + 1, mine):
            pinned = won._replace(pin=1 + self.now(state)) if won.step else won
            yield (f"{who} gets 412, finds its {words} landed",), self._with(state, role, at, pinned)
            return
        pending = self._edited(state, role, at, self.now(state), key)
        if isinstance(pending, str):
            objects = self.without(state, mine) if self.rules.removes_what_it_thinks_lost else state.objects
            told = ", removes its upload" if objects != state.objects else ""
            stopped = self._with(state, role, at, _idle(writer))._replace(objects=objects)
            yield (f"{who} gets 412, reads: {pending}, stops{told}",), stopped
        else:
            again = writer._replace(pending=pending, pin=NONE)
            yield (f"{who} gets 412, reads, applies its {words} again",), self._with(state, role, at, again)

    def _edited(self, state: State, role: Role, at: int, seen: int, key: EditKey) -> int | str:
        if key[0] == "replace" and not self.rules.still_listed_required:
            _, epoch, number, *rest = key
            assert isinstance(number, int)
            manifest = self.book.manifest[state.manifest]
            left = still_listed(manifest, self.book.replacement(number))
            key = ("replace", epoch, self.book.add_replacement(left), *rest)
        return self.book.next(state.manifest, seen, role, at + 1, key)

    def _prepare(self, state: State, role: Role, at: int, writer: Writer, key: EditKey) -> State:
        """Prepare a commit on the manifest that the writer has pinned; on an old one that is a PUT that gets 412."""
        if writer.pin == NONE:
            return self._with(state, role, at, writer._replace(pending=STALE))
        pending = self._edited(state, role, at, writer.pin - 1, key)
        # What its own manifest refuses would be refused again after reading: let it read.
        pending = STALE if isinstance(pending, str) else pending
        return self._with(state, role, at, writer._replace(pending=pending, pin=NONE))

    def _unclaimed(self, state: State, role: Role, pending: int) -> tuple[tuple[int, int | tuple[int, ...]], ...]:
        at = state.requests.index((LANDS, pending))
        nobodys = (LANDS, self.book.anonymous(pending, role))
        return (*state.requests[:at], nobodys, *state.requests[at + 1 :])

    @staticmethod
    def _late(state: State, request: tuple[int, int | tuple[int, ...]]) -> State:
        return state._replace(requests=(*state.requests, request), faults=state.faults - 1)

    @staticmethod
    def _with(state: State, role: Role, at: int, writer: Writer) -> State:
        if role is Role.SINK:
            return state._replace(sinks=set_writer(state.sinks, at, writer))
        return state._replace(compactors=set_writer(state.compactors, at, writer))

    # the sink

    def _sink(self, state: State, at: int) -> Iterator[Step]:
        sink, who, role = state.sinks[at], f"sink{at}", Role.SINK
        if sink.step == IDLE:
            yield from self._assigned(state, at, sink, who)
            return
        if state.faults:
            crashed = self._with(state, role, at, _idle(sink))
            yield (f"{who} crashes",), crashed._replace(faults=state.faults - 1)
        if sink.step == CLAIM:
            yield from self._claiming(state, role, at, sink, who)
        elif sink.step == READY:
            if sink.at >= len(self.kafka):
                yield (f"{who} is done",), self._with(state, role, at, Writer(IDLE, 0, turn=sink.turn))
            for cut in self.bounds.cuts:
                if sink.at + cut <= len(self.kafka):
                    yield from self._upload_segment(state, at, sink._replace(to=sink.at + cut), who)
        elif sink.step == UPLOAD:
            yield from self._upload_segment(state, at, sink, who)
            renamed = sink._replace(step=READY, attempt=sink.attempt + 1, to=0)
            yield (f"{who} cuts anew under another name",), self._with(state, role, at, renamed)
        else:
            won = sink._replace(step=READY, at=sink.to, to=0, attempt=0, pending=NONE)
            key = self._append_key(sink)
            entry = self.book.entry(key[2]) if key[2] else None  # type: ignore[arg-type]
            mine = frozenset[str]() if entry is None else frozenset((entry.name, entry.index_name))
            yield from self._commit(state, role, at, sink, who, key, won, mine)

    def _assigned(self, state: State, at: int, sink: Writer, who: str) -> Iterator[Step]:
        if not sink.left:
            return
        if state.manifest == GONE:
            if not state.objects or not self.rules.create_only_where_empty:
                yield (f"{who} creates a fresh manifest",), self.landed(state, self.book.fresh)
            return
        if self.book.manifest[state.manifest].next_offset < len(self.kafka):
            turn = 1 + max(s.turn for s in state.sinks) if self.bounds.watch_owner else 0
            assigned = sink._replace(left=sink.left - 1, turn=turn)
            yield from self._claim(state, Role.SINK, at, assigned, f"{who} is assigned, reads")

    def _sink_entry(self, base: int, end: int, epoch: int, attempt: int) -> tuple[int, tuple[int, ...]]:
        """(entry, objects) of a segment; (0, ()) where the range has no record."""
        rows = tuple((o, 0) for o in truth.offsets_between(self.kafka, base, end))
        if not rows:
            return 0, ()
        name = ObjectName(base, epoch, Role.SINK, f"{attempt if self.rules.names == 'fresh' else 0:016x}")
        entry = self.book.make_entry(name, name.index, rows, base, end)
        return self.book.add_entry(entry), self.book.blobs_of(entry)

    def _append_key(self, sink: Writer) -> EditKey:
        epoch, attempt = sink.epoch, sink.attempt
        if self.rules.upload_unknown == "keep over a new claim" and attempt:
            rows = tuple((o, 0) for o in truth.offsets_between(self.kafka, sink.at, sink.to))
            name = kept_name(ObjectName(sink.at, attempt, Role.SINK, f"{0:016x}"), epoch)
            entry = self.book.add_entry(self.book.make_entry(name, name.index, rows, sink.at, sink.to))
        else:
            entry, _ = self._sink_entry(sink.at, sink.to, epoch, attempt)
        return ("append", epoch, entry, sink.at, sink.to)

    def _prepare_append(self, state: State, at: int, sink: Writer) -> State:
        sink = sink._replace(step=COMMIT)
        return self._prepare(state, Role.SINK, at, sink, self._append_key(sink))

    def _upload_segment(self, state: State, at: int, sink: Writer, who: str) -> Iterator[Step]:
        """Upload a segment with its index (or nothing, over a hole) and prepare the append."""
        _, blobs = self._sink_entry(sink.at, sink.to, sink.epoch, sink.attempt)
        after, refused = self.put(state, blobs)
        if refused == "taken" and self.rules.upload_unknown != "other bytes":
            yield (f"{who} finds {{}} taken: stops", blobs), self._with(state, Role.SINK, at, _idle(sink))
            return
        told = f"{who} uploads {{}}" + (f", 412 ({refused}): takes it for its own" if refused and blobs else "")
        if not blobs:
            told = f"{who} has no record in [{sink.at}, {sink.to}){{}}"
        yield (told, blobs), self._prepare_append(after, at, sink)
        if state.faults and blobs:
            late = self._late(state, (CREATES, blobs))
            unknown = sink._replace(step=UPLOAD)
            if self.rules.upload_unknown == "other bytes":
                unknown = sink._replace(step=READY, to=0)
            if self.rules.upload_unknown == "keep over a new claim":
                landed = after._replace(faults=state.faults - 1)
                keeps = sink._replace(attempt=sink.epoch)
                told = f"{who}'s upload of its epoch {sink.epoch} times out, a HEAD shows it; it keeps it, reads"
                yield from self._claim(landed, Role.SINK, at, keeps, told)
                return
            yield (f"{who}'s upload of {{}} times out", blobs), self._with(late, Role.SINK, at, unknown)

    # the compactor

    def _compactor(self, state: State, at: int) -> Iterator[Step]:
        compactor, who, role = state.compactors[at], f"compactor{at}", Role.COMPACTOR
        manifest = self.book.manifest[state.manifest]
        if compactor.step == IDLE:
            if compactor.left and state.manifest != GONE and manifest.segments:
                begun = compactor._replace(left=compactor.left - 1, to=self.bounds.parts)
                yield from self._claim(state, role, at, begun, f"{who} begins a pass, reads")
            return
        if state.faults:
            crashed = self._with(state, role, at, _idle(compactor))
            yield (f"{who} crashes",), crashed._replace(faults=state.faults - 1)
        if compactor.step == CLAIM:
            yield from self._claiming(state, role, at, compactor, who)
        elif state.manifest == GONE:
            yield (f"{who} finds the manifest gone: stops",), self._with(state, role, at, _idle(compactor))
        elif compactor.step == READY:
            yield from self._ready(state, at, compactor, who)
        elif compactor.step == UPLOAD:
            plan = self._plan_values[compactor.at]
            yield from self._upload_plan(state, at, compactor, plan, who)
            renamed = compactor._replace(step=READY, attempt=compactor.attempt + 1, at=0)
            yield (f"{who} plans anew under other names",), self._with(state, role, at, renamed)
        elif compactor.step == FORGET:
            ready = compactor._replace(step=READY, at=0, pending=NONE)
            key = ("forget", compactor.epoch, self._forgotten[compactor.at])
            yield from self._commit(state, role, at, compactor, who, key, ready, frozenset())
        else:
            plan = self._plan_values[compactor.at]
            replacement = self.book.replacement(plan.replacement)
            more = compactor._replace(
                step=READY, at=0, to=compactor.to - 1, pending=NONE, attempt=compactor.attempt + 1
            )
            is_last = compactor.at in self._last_plans
            won = _idle(compactor) if is_last else more
            key = self._replace_key(compactor)
            yield from self._commit(state, role, at, compactor, who, key, won, replacement.objects())

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._plans: dict[object, list[int]] = {}
        self._plan_values: list[passes.Plan] = [passes.Plan(0, (), "")]
        self._plan_stamps: list[int] = [0]
        self._last_plans: set[int] = set()
        self._forgotten: list[frozenset[str]] = [frozenset()]
        self._forget_numbers: dict[frozenset[str], int] = {}

    def _ready(self, state: State, at: int, compactor: Writer, who: str) -> Iterator[Step]:
        manifest, role = self.book.manifest[state.manifest], Role.COMPACTOR
        if manifest.compactor.epoch != compactor.epoch and self.rules.epoch_required:
            yield (f"{who} is fenced: stops",), self._with(state, role, at, _idle(compactor))
            return
        plans = [n for whole in (True, False)[: 1 + (compactor.to > 0)] for n in self._planned(state, compactor, whole)]
        for number in plans:
            plan = self._plan_values[number]
            yield from self._upload_plan(state, at, compactor._replace(at=number), plan, who)
        if not plans:
            yield (f"{who} has nothing to do",), self._with(state, role, at, _idle(compactor))
        there = {self.book.blob(b).name for b in state.objects}
        gone = frozenset(r.name for r in manifest.replaced if r.name not in there)
        if gone and self.bounds.forgets:
            number = self._forget_numbers.setdefault(gone, len(self._forgotten))
            if number == len(self._forgotten):
                self._forgotten.append(gone)
            forgetting = compactor._replace(step=FORGET, at=number)
            told = f"{who} forgets {', '.join(map(short, sorted(gone)))}"
            yield (told,), self._prepare(state, role, at, forgetting, ("forget", compactor.epoch, gone))

    def _planned(self, state: State, compactor: Writer, whole: bool) -> list[int]:
        now, wait = self.due_at(state)
        manifest = self.book.manifest[state.manifest]
        attempt = compactor.attempt if self.rules.names == "fresh" else 0
        due = passes.due_passes(manifest, now, wait)
        job = passes.Job(manifest, compactor.epoch, attempt, due, may_mark=whole or self.rules.every_part_marks)
        stamp = self.now(state)
        key = (state.manifest, compactor.epoch, attempt, job.due, stamp, whole)
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = []
            for plan in passes.plans(self.book, self.rules, job, whole=whole):
                known.append(len(self._plan_values))
                if whole:
                    self._last_plans.add(len(self._plan_values))
                self._plan_values.append(plan)
                self._plan_stamps.append(stamp)
        return known

    def _replace_key(self, compactor: Writer) -> EditKey:
        number = compactor.at
        plan = self._plan_values[number]
        is_part = number not in self._last_plans
        return ("replace", compactor.epoch, plan.replacement, self._plan_stamps[number], is_part)

    def _upload_plan(self, state: State, at: int, compactor: Writer, plan: passes.Plan, who: str) -> Iterator[Step]:
        role = Role.COMPACTOR
        after, refused = self.put(state, plan.uploads) if plan.uploads else (state, "")
        if refused == "taken" and self.rules.upload_unknown != "other bytes":
            renamed = compactor._replace(step=READY, attempt=compactor.attempt + 1, at=0)
            yield (f"{who} finds its names taken",), self._with(state, role, at, renamed)
            return
        committing = compactor._replace(step=COMMIT)
        words = plan.words.replace("{", "{{").replace("}", "}}")
        told = f"{who} uploads: {words}" + (f", 412 ({refused}): takes it for its own" if refused else "")
        yield (told,), self._prepare(after, role, at, committing, self._replace_key(committing))
        if state.faults and plan.uploads:
            late = self._late(state, (CREATES, plan.uploads))
            unknown = compactor._replace(step=UPLOAD)
            if self.rules.upload_unknown == "other bytes":
                unknown = compactor._replace(step=READY, at=0)
            yield (f"{who}'s upload times out: {words}",), self._with(late, role, at, unknown)


def _idle(writer: Writer) -> Writer:
    return Writer(IDLE, writer.left, turn=writer.turn)
