"""One partition from the log into the target: recover, announce a window, produce it, and again.

    recover     the windows in force and the target's end say which source offset landed last; its neighbourhood is
                compared with the source; reading goes on behind it
    produce     a window is created in the journal, then its records are handed to the channel; the next one is
                announced while the former is still under way: where it lands is known
    finish      when all has landed a window without records says so

A failure that may pass (a broker away, a store that does not answer) begins again at `recover`, after a pause in which
what was under way has landed or was given up, as long as there is progress within the time given to retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from keyfold.errors import KeyfoldError, ObjectNotFound
from keyfold.log.record import Header, Record
from keyfold.restore.errors import RecordRefused, RestoreRefused, RestoreStopped, TargetMoved
from keyfold.restore.journal import Journal
from keyfold.restore.lease import Lease
from keyfold.restore.pace import Pace
from keyfold.restore.rows import Row
from keyfold.restore.source import BATCH_BYTES, WINDOW_RECORDS, RestoreSource, SegmentRecords
from keyfold.restore.target import Channel, RestoreTarget
from keyfold.restore.window import NO_OFFSETS, Window
from keyfold.runtime.clock import Clock

PROOF_RECORDS: Final = 100
_CHUNK: Final = 256
_QUIET_S: Final = 5.0
_STEP_S: Final = 0.25
_RECORD_OVERHEAD_BYTES: Final = 16

Progress = Callable[[int], None]
"""Called with how many records were handed over since the last call."""


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """How records are written, the same in every run of a restore.

    `offset_header` is the name of a header that gets the source offset, in decimal digits, behind the record's own.
    `restamps`: the target puts its own timestamps on. `append`: the target may have records already.
    """

    offset_header: str | None = None
    restamps: bool = False
    append: bool = False
    window_records: int = WINDOW_RECORDS
    batch_bytes: int = BATCH_BYTES
    retry_timeout_s: float = 600.0

    def restamping(self) -> RestoreSettings:
        """The same for a target that puts its own timestamps on."""
        return replace(self, restamps=True)

    def written(self, record: Record) -> Record:
        """The record as it is in the target."""
        if self.offset_header is None:
            return record
        header = (self.offset_header, b"%d" % record.offset)
        return Record(
            record.offset, record.timestamp, record.timestamp_type, record.key, record.value,
            (*record.headers, header), record.leader_epoch,
        )  # fmt: skip

    def differs(self, source: Record, found: Record) -> str | None:
        """What of a record in the target is not what was to be written; None where all is."""
        wanted = self.written(source)
        for name in ("key", "value", "headers"):
            if getattr(wanted, name) != getattr(found, name):
                return name
        if not self.restamps and wanted.timestamp not in {found.timestamp, 0}:
            return "timestamp"
        return None


@dataclass(slots=True)
class RestoreState:
    """Where a partition's restore stands. `landed` counts the records of all runs."""

    number: int = 0
    base: int = -1
    first_base: int = -1
    position: int = 0
    landed: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What came of a partition: `records` landed altogether, `wrote` of them in this run.

    They are in `[first_offset, next_offset)` of the target; source offsets below `source_end` were restored.
    """

    partition: int
    records: int
    wrote: int
    first_offset: int
    next_offset: int
    source_end: int
    log_end: int
    was_finished: bool = False


@dataclass(slots=True)
class PartitionRestore:
    """One partition of a restore. For one thread."""

    partition: int
    source: RestoreSource
    target: RestoreTarget
    journal: Journal
    lease: Lease
    settings: RestoreSettings
    clock: Clock
    pace: Pace
    start: int
    progress: Progress = lambda _: None
    goes_on: bool = False
    stop: Callable[[], bool] = lambda: False
    is_settled: bool = True
    _state: RestoreState = field(default_factory=RestoreState)
    _landed_before: int = 0

    def run(self) -> RestoreResult:
        """Restore it. Raises what stops a restore, or the last error when retries have run out."""
        reached = -1
        until_s = self.clock.monotonic_s() + self.settings.retry_timeout_s
        quiet = self.lease.was_clean
        self._landed_before = -1
        while True:
            try:
                return self._attempt(quiet=quiet)
            except KeyfoldError as error:
                quiet = False
                if self._state.base > reached:
                    reached = self._state.base
                    until_s = self.clock.monotonic_s() + self.settings.retry_timeout_s
                if not error.retriable or self.clock.monotonic_s() > until_s or self.stop():
                    raise
                self._pause()

    def _pause(self) -> None:
        """Wait until what a closed channel had under way has landed or is given up."""
        until_s = self.clock.monotonic_s() + self.lease.lease_s
        while self.clock.monotonic_s() < until_s and not self.stop():
            self.clock.sleep(min(0.2, self.lease.lease_s / 10))

    def _wait_for_quiet(self) -> None:
        """Return when the target's end has not moved for a while, counted from when the broker answers.

        A broker that was paused itself has requests of an earlier producer before it when it wakes, and answers in any
        order.
        """
        quiet_s = min(_QUIET_S, self.lease.lease_s / 2)
        end = self.target.ends(self.partition).end_offset
        since_s = self.clock.monotonic_s()
        while self.clock.monotonic_s() - since_s < quiet_s:
            self.clock.sleep(quiet_s / 10)
            found = self.target.ends(self.partition).end_offset
            if found != end:
                end, since_s = found, self.clock.monotonic_s()

    def _attempt(self, *, quiet: bool) -> RestoreResult:
        if not quiet:
            self._wait_for_quiet()
        was_finished = self.recover()
        if self._landed_before < 0:
            self._landed_before = self._state.landed
        if was_finished and not self.goes_on:
            return self.result(was_finished=True)
        self.source.renew(None, self._state.position)
        channel = self.target.channel(self.partition, self._state.base)
        self.is_settled = False
        try:
            self._produce_all(channel)
            channel.settle()
        except RecordRefused as error:
            raise self._named(error) from error
        finally:
            self._landed(channel)
            self.is_settled = channel.close()
        self._announce(NO_OFFSETS, self.source.end, finished=True)
        return self.result()

    def _named(self, error: RecordRefused) -> KeyfoldError:
        """The same with the offset in the log."""
        for window in self.journal.in_force(self.partition, self.journal.numbers(self.partition)):
            if window.base <= error.target_offset < window.end:
                offset = int(window.offsets[error.target_offset - window.base])
                return RestoreRefused(f"{error.message} (offset {offset} of the log)", hint=error.hint)
        return error

    @property
    def position(self) -> int:
        """Where the source is read on."""
        return self._state.position

    @property
    def landed(self) -> int:
        """How many records of all runs are in the target."""
        return self._state.landed

    def result(self, *, was_finished: bool = False) -> RestoreResult:
        """What has come of it up to now."""
        state = self._state
        return RestoreResult(
            self.partition, state.landed, state.landed - self._landed_before,
            state.first_base, state.base, state.position,
            self.source.manifest.next_offset, was_finished,
        )  # fmt: skip

    # Recover

    def recover(self) -> bool:
        """Find out what has landed. Returns whether the partition is finished. Raises `TargetMoved`, `RestoreRefused`.

        Writes nothing.
        """
        ends = self.target.ends(self.partition)
        numbers = self.journal.numbers(self.partition)
        if not numbers:
            self._require_empty(ends.start_offset, ends.end_offset)
            self.source.begin()
            self._state = RestoreState(0, ends.end_offset, ends.end_offset, self.start)
            return False
        self.source.go_on_from(self.journal.last_anchor(self.partition, numbers))
        number = len(numbers)
        first_base = self.journal.read(self.partition, 0).base
        last = self.journal.read(self.partition, numbers[-1])
        if last.finished:
            if ends.end_offset < last.base or (self.goes_on and ends.end_offset != last.base):
                raise self._moved(f"ends at offset {ends.end_offset}, but this restore ended at offset {last.base}")
            landed = last.base - first_base
            self._state = RestoreState(number, last.base, first_base, last.next_position, landed, finished=True)
            return True
        end = ends.end_offset
        if end > last.end:
            raise self._moved(f"ends at offset {end}, but this restore wrote no record after offset {last.end - 1}")
        known = self._landed_windows(numbers, end)
        if not known:
            raise self._moved(f"ends at offset {end}, before offset {first_base}, where this restore started")
        self._prove(known, max(ends.start_offset, first_base), end)
        position = known[0].position_after(end - known[0].base)
        self._state = RestoreState(number, end, first_base, position, end - first_base)
        return False

    def _landed_windows(self, numbers: list[int], end: int) -> list[Window]:
        """Windows in force that begin at or below `end`, the last one first; as many as are needed for the proof."""
        found: list[Window] = []
        for window in self.journal.in_force(self.partition, numbers):
            if window.base <= end:
                found.append(window)
                if window.base <= end - PROOF_RECORDS:
                    break
        return found

    def _require_empty(self, start: int, end: int) -> None:
        if start != end and not self.settings.append:
            raise RestoreRefused(
                f"{self._where} already has records: offsets {start} to {end - 1}",
                hint="restore into an empty topic, or append the log's records with --append",
            )

    def _prove(self, windows: list[Window], start: int, end: int) -> None:
        """Compare the records that landed last with the source, as far as both still have them."""
        start = max(start, end - PROOF_RECORDS)
        if start >= end:
            return
        expected: dict[int, int] = {}
        for window in windows:
            for at in range(max(start, window.base), min(end, window.end)):
                expected[at] = int(window.offsets[at - window.base])
        found = {record.offset: record for record in self.target.records(self.partition, start, end)}
        sources = self.source.at(np.array(sorted(expected[at] for at in found if at in expected), np.int64))
        for at, record in sorted(found.items()):
            original = sources.get(expected.get(at, -1))
            if original is not None:
                what = self.settings.differs(original, record)
                if what is not None:
                    raise self._moved(
                        f"has at offset {at} another {what} than source offset {original.offset}, which this restore "
                        "wrote there"
                    )

    @property
    def _where(self) -> str:
        return f"partition {self.partition} of the target"

    def _moved(self, what: str) -> TargetMoved:
        return TargetMoved(
            f"{self._where} {what}: something else writes into it, or the partition lost records",
            hint="the restored records can no longer be identified: restore into a new topic, and let nothing else "
            "write into it",
        )

    # Produce

    def _produce_all(self, channel: Channel) -> None:
        while True:
            try:
                for part in self.source.windows(self._state.position, self.settings.window_records):
                    self._produce(channel, part)
            except ObjectNotFound as error:
                self.source.renew(error, self._state.position)
            else:
                return

    def _produce(self, channel: Channel, part: SegmentRecords) -> None:
        """Announce a window and hand its records over. On a 404 the state says how far it came."""
        last = int(part.offsets[-1]) + 1
        base, position = self._state.base, self._state.position
        self._announce(part.offsets, last, finished=False)
        sent = 0
        try:
            rows = self.source.rows(part)
            while chunk := list(islice(rows, _CHUNK)):
                self._hand_over(channel, chunk)
                sent += len(chunk)
                self._landed(channel)
        except ObjectNotFound:
            window = Window(0, base, position, last, part.offsets)
            self._state.base, self._state.position = base + sent, window.position_after(sent)
            raise

    def _hand_over(self, channel: Channel, rows: list[Row]) -> None:
        """Send records, none of them later than the lease was fresh."""
        name = self.settings.offset_header
        if name is not None:
            rows = [(o, t, k, v, [*(headers or ()), (name, b"%d" % o)]) for o, t, k, v, headers in rows]
        if self.pace.is_free:
            self._send(channel, rows)
        else:
            for row in rows:
                self._wait(self.pace.reserve(1, _size_bytes(*row[2:])))
                self._send(channel, [row])
        self.progress(len(rows))

    def _send(self, channel: Channel, rows: list[Row]) -> None:
        taken = 0
        while taken < len(rows):
            self._require_running()
            taken += channel.send(rows[taken:] if taken else rows, self.lease.hold())

    def _wait(self, seconds: float) -> None:
        while seconds > 0:
            self._require_running()
            self.clock.sleep(min(seconds, _STEP_S))
            seconds -= _STEP_S

    def _require_running(self) -> None:
        if self.stop():
            raise RestoreStopped(
                f"{self._where} was stopped before it was complete", hint="run the command again to continue"
            )

    def _announce(self, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], end: int, *, finished: bool) -> None:
        state = self._state
        self.lease.hold()
        window = Window(
            state.number, state.base, state.position, end, offsets, self.lease.epoch, finished, self.source.anchor
        )
        state.number = self.journal.add(self.partition, window) + 1
        state.base += len(offsets)
        state.position = max(state.position, end)
        state.finished = finished

    def _landed(self, channel: Channel) -> None:
        landed = channel.landed_offset - self._state.first_base
        self._state.landed = max(self._state.landed, landed)


def _size_bytes(key: bytes | None, value: bytes | None, headers: list[Header] | None) -> int:
    of_headers = sum(len(name) + len(content or b"") for name, content in headers or ())
    return len(key or b"") + len(value or b"") + of_headers + _RECORD_OVERHEAD_BYTES
