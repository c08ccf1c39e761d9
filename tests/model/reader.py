"""The reader: it pins a manifest, reads record after record, and may move to the newest manifest at any moment.

The decisions are the real ones: `anchor_of` when it begins, `check_resumed` when it goes on. A reader that is never
refused must end with the state that Kafka's records up to its end fold to.
"""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.errors import OffsetOutOfRange
from keyfold.read.position import Anchor, anchor_of, check_resumed
from tests.model import truth
from tests.model.book import GONE, Violation, short
from tests.model.protocol import Ahead, Protocol, Reader, State, Step
from tests.model.rules import Bounds, Rules


class Reads(Protocol):
    """What the reader may do."""

    def __init__(self, kafka: truth.KafkaLog = truth.FOUR, *, rules: Rules | None = None, bounds: Bounds) -> None:
        super().__init__(kafka, rules=rules, bounds=bounds)
        self._anchors: list[Anchor] = []
        self._anchor_numbers: dict[Anchor, int] = {}
        self._resumes: dict[tuple[int, int, int], bool] = {}
        self._reads: dict[tuple[int, int], tuple[Ahead, ...]] = {}

    def read_steps(self, state: State) -> Iterator[Step]:
        """What the reader may do."""
        reader = state.reader
        manifest = self.book.manifest[state.manifest]
        if reader.step == 0:
            if state.manifest != GONE and manifest.segments:
                begun = Reader(
                    1,
                    self._anchor(anchor_of(manifest)),
                    self._ahead(state.manifest, 0),
                    manifest.log_start_offset,
                    manifest.next_offset,
                    start=manifest.log_start_offset,
                )
                yield ("the reader pins the manifest up to {}", manifest.next_offset), state._replace(reader=begun)
            return
        if reader.step != 1:
            return
        yield from self._read_on(state)
        if state.manifest == GONE:
            return
        ahead = self._ahead(state.manifest, reader.position)
        end = manifest.next_offset if self.rules.reads_to == "newest end" else reader.end
        if ahead == reader.segments and end == reader.end:
            return
        if self.rules.reads_to == "first end":
            ahead = tuple(
                (b, tuple(o for o in rows if o < end), min(to, end)) for b, rows, to in ahead if rows[0] < end
            )
        if self._may_resume(reader, state.manifest):
            yield (
                ("the reader goes on at {} in the newest manifest", reader.position),
                state._replace(reader=reader._replace(segments=ahead, end=end)),
            )
        elif self.bounds.timely and reader.position >= manifest.log_start_offset:
            raise Violation(
                f"a timely reader is refused at offset {reader.position}",
                f"the reader asks to go on at {reader.position} in the newest manifest",
            )
        else:
            is_overtaken = reader.position < manifest.log_start_offset
            told = "the reader is overtaken at {}" if is_overtaken else "the reader is refused at {}"
            yield (told, reader.position), state._replace(reader=Reader(2))

    def _read_on(self, state: State) -> Iterator[Step]:
        reader = state.reader
        segments = reader.segments
        if not segments:
            expected = truth.fold(self.kafka, truth.offsets_between(self.kafka, reader.start, reader.end))
            if reader.latest != expected:
                raise Violation(
                    f"the reader ends at {reader.end} with {dict(reader.latest)}, Kafka has {dict(expected)}",
                    "the reader ends",
                )
            yield ("the reader ends",), state._replace(reader=Reader(2))
            return
        blob, rows, range_end = segments[0]
        name = self.book.blob(blob).name
        if blob not in state.objects:
            if any(self.book.blob(o).name == name for o in state.objects):
                raise Violation(
                    f"{short(name)} has other bytes than its manifest means", f"the reader reads {short(name)}"
                )
            if self.bounds.timely:
                raise Violation(f"404 on {short(name)} for a timely reader", f"the reader reads {short(name)}")
            return  # SnapshotLost, or it goes on in the newest manifest
        record = self.kafka[rows[0]]
        assert record is not None
        latest = dict(reader.latest)
        latest.pop(record[0], None)
        if record[1] is not None:
            latest[record[0]] = rows[0]
        yield (
            ("the reader reads {} from {}", rows[0], blob),
            state._replace(
                reader=reader._replace(
                    segments=((blob, rows[1:], range_end), *segments[1:]) if rows[1:] else segments[1:],
                    position=rows[0] + 1 if rows[1:] else range_end,
                    latest=tuple(sorted(latest.items())),
                )
            ),
        )

    def _anchor(self, anchor: Anchor) -> int:
        number = self._anchor_numbers.get(anchor)
        if number is None:
            number = self._anchor_numbers[anchor] = len(self._anchors)
            self._anchors.append(anchor)
        return number

    def _ahead(self, number: int, position: int) -> tuple[Ahead, ...]:
        known = self._reads.get((number, position))
        if known is None:
            ahead = []
            for entry in self.book.manifest[number].segments:
                rows = tuple(o for o, _ in self.book.rows(entry) if o >= position)
                if rows:
                    ahead.append((self.book.blobs_of(entry)[0], rows, entry.next_offset))
            known = self._reads[number, position] = tuple(ahead)
        return known

    def _may_resume(self, reader: Reader, number: int) -> bool:
        key = (reader.anchor, reader.position, number)
        known = self._resumes.get(key)
        if known is None:
            position = reader.position + (1 if self.rules.resume == "<" else 0)
            if self.rules.resume == "below the log start":
                position = max(position, self.book.manifest[number].log_start_offset)
            try:
                if self.rules.resume != "unchecked":
                    check_resumed(self._anchors[reader.anchor], position, self.book.manifest[number])
                known = True
            except OffsetOutOfRange:
                known = False
            self._resumes[key] = known
        return known
