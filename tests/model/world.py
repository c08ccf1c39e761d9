"""The whole model: the bucket, the network, garbage collection, and all who act on them. `protocol` has the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from keyfold.log.gc import due_names, orphan_names
from keyfold.log.manifest import Manifest
from keyfold.log.names import Role, parse_name
from tests.model.book import GONE, Violation, short
from tests.model.compactor import Compactors
from tests.model.protocol import CREATES, DELETES, IDLE, LANDS, Reader, State, Step, Writer
from tests.model.reader import Reads
from tests.model.search import Label
from tests.model.sink import Sinks


class World(Sinks, Compactors, Reads):
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
            entry, blobs = self.sink_entry(base, end, 1, attempt)
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
            expires=self.bounds.expires,
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
                yield ("the manifest is lost",), self.landed(state, GONE)._replace(lost=needed)
        for at in range(len(state.sinks)):
            yield from self.sink_steps(state, at)
        for at in range(len(state.compactors)):
            yield from self.compactor_steps(state, at)
        if self.bounds.gc and state.manifest != GONE and all(r[0] != DELETES for r in state.requests):
            yield from self._gc(state)
        if self.bounds.reader:
            yield from self.read_steps(state)

    def begun(self, state: State, role: Role, at: int, claiming: Writer, ready: Writer) -> State:
        """See `Writers.begun`."""
        if role is Role.SINK:
            return self.sink_begun(state, at, claiming, ready)
        return self.with_writer(state, role, at, ready)

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

    # garbage collection

    def _gc(self, state: State) -> Iterator[Step]:
        """It decides by the manifest that it reads; a DELETE lands whenever it likes, a segment's with its index's."""
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
                (f"gc deletes {kind} {{}}", tuple(blobs)),
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
