"""What `tests/property/test_log_machine.py` holds a log to: a dict, and the list of what was appended.

`SpecStore` is a store that looks at the log, with the eyes of a reader who pins it, after every manifest that lands,
whoever sent it and whenever: so no state that ever existed escapes. The rules of the machine only make things happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import parse_name
from keyfold.log.record import Record
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Chaos, Fault, kinds_of
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import PLACE, latest, load, object_names, read_all
from tests.support.clocks import SkewedClock


@dataclass(slots=True)
class JumpyClock:
    """A machine's clock: `now_ms` may jump either way, `monotonic_s` does not."""

    wall_ms: int = 1_700_000_000_000
    elapsed_ms: int = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.elapsed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.elapsed_ms += round(seconds * 1000)
        self.wall_ms += round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class OneFault(Chaos):
    """The call with number `at` fails in one of the ways in which it can."""

    at: int = 0
    choice: int = 0

    def fault(self, call: Call) -> Fault | None:
        if call.number != self.at:
            return None
        kinds = kinds_of(call.operation)
        return Fault(call.number, kinds[self.choice % len(kinds)])

    @staticmethod
    def drawn(at: int, choice: int) -> OneFault:
        return OneFault(Random(0), 0.0, at=at, choice=choice)


@dataclass(frozen=True, slots=True)
class Batch:
    """What an append brings."""

    records: tuple[Record, ...]
    next_offset: int


def states(appended: Iterable[Record], ranges: Iterable[tuple[int, int]]) -> list[dict[bytes, Record]]:
    """The states of a log that had these ranges, from log start to log end."""
    records = list(appended)
    return [latest(r for r in records if start <= r.offset < end) for start, end in sorted(set(ranges))]


@dataclass
class SpecStore(MemoryStore):
    """A store in memory that judges every version of the log as it lands, and every deletion.

    It judges by `clock`, which is right. What it shows to those who ask is `shown`, which a test may let jump.
    """

    clock: ManualClock = field(default_factory=ManualClock)
    shown: SkewedClock = field(init=False)
    in_force: list[TopicSettings] = field(default_factory=list)
    """What the passes that may still commit go by: a request of a dead one may be on its way."""
    attempts: dict[str, Batch] = field(default_factory=dict)
    """What the sinks try to append, by the name of the segment."""
    appended: list[Record] = field(default_factory=list)
    appended_at: dict[int, int] = field(default_factory=dict)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Log start and log end of each version, in the order of the versions."""
    alone_since: dict[int, int] = field(default_factory=dict)
    """Store time at which a tombstone was first seen without an older record of its key."""
    unlinked: dict[str, int] = field(default_factory=dict)
    before: Manifest | None = None
    present: set[int] = field(default_factory=set)
    had_min_garbage: bool = False
    broken: AssertionError | None = None
    """The first broken promise. Kept, not raised: whoever made the call might take it for a fault of the store."""

    def __post_init__(self) -> None:
        self.shown = SkewedClock(self.clock)
        MemoryStore.__init__(self, "specified", self.shown)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        result = super().put(key, data, mode)
        if key == PLACE.manifest_key:
            self._judge(lambda: self.look(decode_manifest(bytes(data), PLACE)))
        return result

    def delete(self, key: str) -> None:
        self._judge(lambda: self._check_deletion(key.removeprefix(PLACE.folder)))
        super().delete(key)

    def _judge(self, check: Callable[[], None]) -> None:
        if self.broken is None:
            try:
                check()
            except AssertionError as error:
                self.broken = error

    def _check_deletion(self, name: str) -> None:
        assert name not in load(self).object_names(), f"{name} is deleted, and the manifest names it"
        if name in self.unlinked:
            age_ms = self.clock.now_ms() - self.unlinked[name]
            delay_ms = min(s.file_delete_delay_ms for s in self.in_force)
            assert age_ms + self.shown.cut_ms >= delay_ms, f"{name} is deleted {age_ms} ms after it was replaced"

    def look(self, manifest: Manifest) -> None:
        """Judge a version that has just landed."""
        assert manifest.object_names() <= object_names(self), "the manifest names an object that is not there"
        self._take_appends(manifest)
        found = read_all(self, manifest)
        self._check_progress(manifest)
        self._check_records(manifest, found)
        self._check_removed(manifest, found)
        self._check_expired(manifest)
        self._remember(manifest, found)

    def _take_appends(self, manifest: Manifest) -> None:
        """The newest segment of a sink is the append that has just landed: its records are the log's from now on."""
        for entry in manifest.segments[-1:]:
            batch = self.attempts.get(entry.name)
            end = self.ranges[-1][1] if self.ranges else 0
            if batch is not None and batch.records[-1].offset >= end:
                assert batch.records[0].offset >= end
                self.appended += batch.records
                now_ms = self.clock.now_ms()
                self.appended_at |= {r.offset: now_ms for r in batch.records}
        self.ranges.append((manifest.log_start_offset, manifest.next_offset))

    def _check_progress(self, manifest: Manifest) -> None:
        if self.before is not None:
            was = self.before
            assert manifest.version == was.version + 1
            assert manifest.log_id == was.log_id
            assert manifest.next_offset >= was.next_offset
            assert manifest.first_dirty_offset >= was.first_dirty_offset
            assert manifest.log_start_offset >= was.log_start_offset
            assert manifest.last_epoch >= was.last_epoch
            assert manifest.purged_to >= was.purged_to
        epochs = {parsed.epoch for name in manifest.object_names() if (parsed := parse_name(name)) is not None}
        assert max(epochs, default=0) <= manifest.last_epoch

    def _check_records(self, manifest: Manifest, found: list[Record]) -> None:
        """The state is the dict's; what is there is what was appended; the head is dense, the tail has a key once."""
        appended = [r for r in self.appended if r.offset >= manifest.log_start_offset]
        assert latest(found) == latest(appended)
        by_offset = {r.offset: r for r in appended}
        assert all(by_offset[r.offset] == r for r in found)
        # With a minimum garbage ratio a pass may clean beyond a segment that it leaves, which holds the first
        # dirty offset back; that the head is dense within the lag is checked by what each commit removes.
        self.had_min_garbage |= any(s.segment_min_garbage_ratio > 0 for s in self.in_force)
        head = [r for r in found if r.offset >= manifest.first_dirty_offset]
        dense = [r for r in appended if r.offset >= manifest.first_dirty_offset]
        assert head == dense or self.had_min_garbage, "the head is not dense"
        keys = [r.key for r in found if r.offset < manifest.first_dirty_offset and r.key is not None]
        assert len(set(keys)) == len(keys), "superseded below the first dirty offset"

    def _check_removed(self, manifest: Manifest, found: list[Record]) -> None:
        """What this commit has taken away was old enough, and had to go."""
        now_ms = self.clock.now_ms() + self.shown.cut_ms
        here = {r.offset for r in found}
        first_dirty = 0 if self.before is None else self.before.first_dirty_offset
        lag_ms = min(s.min_compaction_lag_ms for s in self.in_force)
        last: dict[bytes | None, int] = {}
        for r in reversed(self.appended):
            later = last.setdefault(r.key, r.offset)  # of the key's later records that are old enough, the last
            is_old = now_ms - self.appended_at[r.offset] >= lag_ms
            if r.key is not None and r.offset == later and not is_old:
                del last[r.key]
            if r.offset not in self.present - here or r.offset < manifest.log_start_offset:
                continue
            # The clean part may hold what is younger than a lag that was raised since: it is clean all the same.
            assert is_old or r.offset < first_dirty, f"{r} goes within min.compaction.lag.ms"
            if r.key is None:
                assert any(s.remove_keyless for s in self.in_force)
            elif later == r.offset:
                self._check_purged(manifest, r, now_ms)

    def _check_expired(self, manifest: Manifest) -> None:
        """What went from the log's start was past retention: by its own time, or by the time of its append."""
        policies = [s for s in self.in_force if s.delete]
        by_size = [s.retention_bytes for s in policies if s.retention_bytes >= 0]
        by_time = [s.retention_ms for s in policies if s.retention_ms >= 0]
        gone = [r for r in self.appended if r.offset in self.present and r.offset < manifest.log_start_offset]
        if gone and by_size and not by_time:
            assert manifest.size_bytes >= min(by_size)
        if gone and not by_size:
            assert by_time, f"{gone} went, and nobody asked for it"
            now_ms = self.clock.now_ms() + self.shown.cut_ms
            for r in gone:
                # A record without a timestamp goes with its neighbours.
                age_ms = now_ms - min(self.appended_at[r.offset], r.timestamp)
                assert r.timestamp < 0 or age_ms >= min(by_time), f"{r} went before retention.ms"

    def _check_purged(self, manifest: Manifest, r: Record, now_ms: int) -> None:
        assert r.is_tombstone, f"{r} goes, and nothing that is old enough supersedes it"
        assert r.offset <= manifest.purged_to
        alone_ms = now_ms - self.alone_since[r.offset]
        assert alone_ms >= min(s.delete_retention_ms for s in self.in_force), f"{r} goes after {alone_ms} ms"

    def _remember(self, manifest: Manifest, found: list[Record]) -> None:
        now_ms = self.clock.now_ms()
        if self.before is not None:
            for name in self.before.object_names() - manifest.object_names():
                self.unlinked.setdefault(name, now_ms)
        seen: set[bytes] = set()
        for r in found:
            if r.key is not None:
                if r.is_tombstone and r.key not in seen:
                    self.alone_since.setdefault(r.offset, now_ms)
                seen.add(r.key)
        self.before = manifest
        self.present = {r.offset for r in found}
