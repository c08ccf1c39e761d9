"""The sink: it is assigned, claims, cuts segments where it likes, uploads them and appends them."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.log.names import ObjectName, Role
from tests.model import truth
from tests.model.book import GONE, EditKey, Violation
from tests.model.careless import kept_name
from tests.model.protocol import CLAIM, COMMIT, CREATES, IDLE, NONE, READY, UPLOAD, State, Step, Writer
from tests.model.writers import Writers, idle


class Sinks(Writers):
    """What a sink may do."""

    def sink_steps(self, state: State, at: int) -> Iterator[Step]:
        """Everything that sink `at` may do next."""
        sink, who, role = state.sinks[at], f"sink{at}", Role.SINK
        if sink.step == IDLE:
            yield from self._assigned(state, at, sink, who)
            return
        if state.faults:
            crashed = self.with_writer(state, role, at, idle(sink))
            yield (f"{who} crashes",), crashed._replace(faults=state.faults - 1)
        if sink.step == CLAIM:
            yield from self.claiming(state, role, at, sink, who)
        elif sink.step == READY:
            if sink.at >= len(self.kafka):
                yield (f"{who} is done",), self.with_writer(state, role, at, Writer(IDLE, 0, turn=sink.turn))
            for cut in self.bounds.cuts:
                if sink.at + cut <= len(self.kafka):
                    yield from self._upload_segment(state, at, sink._replace(to=sink.at + cut), who)
        elif sink.step == UPLOAD:
            yield from self._upload_segment(state, at, sink, who)
            renamed = sink._replace(step=READY, attempt=sink.attempt + 1, to=0)
            yield (f"{who} cuts again under another name",), self.with_writer(state, role, at, renamed)
        else:
            won = sink._replace(step=READY, at=sink.to, to=0, attempt=0, pending=NONE)
            key = self._append_key(sink)
            entry = self.book.entry(key[2]) if key[2] else None  # type: ignore[arg-type]  # a key of three has a name
            mine = frozenset[str]() if entry is None else frozenset((entry.name, entry.index_name))
            yield from self.commit(state, role, at, sink, who, key, won, mine)

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
            yield from self.claim(state, Role.SINK, at, assigned, f"{who} is assigned, reads")

    def sink_entry(self, base: int, end: int, epoch: int, attempt: int) -> tuple[int, tuple[int, ...]]:
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
            entry, _ = self.sink_entry(sink.at, sink.to, epoch, attempt)
        return ("append", epoch, entry, sink.at, sink.to)

    def _prepare_append(self, state: State, at: int, sink: Writer) -> State:
        sink = sink._replace(step=COMMIT)
        return self.prepare(state, Role.SINK, at, sink, self._append_key(sink))

    def _upload_segment(self, state: State, at: int, sink: Writer, who: str) -> Iterator[Step]:
        """Upload a segment with its index (or nothing, over a hole) and prepare the append."""
        _, blobs = self.sink_entry(sink.at, sink.to, sink.epoch, sink.attempt)
        after, refused = self.put(state, blobs)
        if refused == "taken" and self.rules.upload_unknown != "other bytes":
            yield (f"{who} finds {{}} taken: stops", blobs), self.with_writer(state, Role.SINK, at, idle(sink))
            return
        told = f"{who} uploads {{}}" + (f", 412 ({refused}): takes it for its own" if refused and blobs else "")
        if not blobs:
            told = f"{who} has no record in [{sink.at}, {sink.to}){{}}"
        yield (told, blobs), self._prepare_append(after, at, sink)
        if state.faults and blobs:
            late = self.late(state, (CREATES, blobs))
            unknown = sink._replace(step=UPLOAD)
            if self.rules.upload_unknown == "other bytes":
                unknown = sink._replace(step=READY, to=0)
            if self.rules.upload_unknown == "keep over a new claim":
                landed = after._replace(faults=state.faults - 1)
                keeps = sink._replace(attempt=sink.epoch)
                told = f"{who}'s upload of its epoch {sink.epoch} times out, a HEAD shows it; it keeps it, reads"
                yield from self.claim(landed, Role.SINK, at, keeps, told)
                return
            yield (f"{who}'s upload of {{}} times out", blobs), self.with_writer(late, Role.SINK, at, unknown)

    def sink_begun(self, state: State, at: int, claiming: Writer, ready: Writer) -> State:
        """A sink with a new epoch begins where the log ends."""
        self._check_owner(state, at, claiming)
        if claiming.attempt:  # it keeps the upload of its older epoch (W8)
            return self._prepare_append(state, at, ready._replace(attempt=claiming.attempt))
        end = self.book.manifest[state.manifest].next_offset
        return self.with_writer(state, Role.SINK, at, ready._replace(at=end, to=0))

    def _check_owner(self, state: State, at: int, writer: Writer) -> None:
        later = [n for n, s in enumerate(state.sinks) if s.turn > writer.turn and s.step >= READY]
        if self.bounds.watch_owner and later:
            message = f"sink{at} fences sink{later[0]}, to whom the partition was assigned after it"
            raise Violation(message, f"sink{at} claims")
