"""Comparison of a table with the log: every row, and that no row is missing.

A table shows older versions than the log has now, and these may be deleted. What it must show follows from the newest
version all the same, for offsets before the shown end:

    a record of the latest state                          is a row
    a row that is not of the latest state                 has a key with a newer record, after the shown end
    a row that is of the latest state                     has the record's key, value and time

If a tombstone was removed that this needs, or the log is another one, the partition cannot be judged before a sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from keyfold.errors import ObjectNotFound, OffsetOutOfRange
from keyfold.export.request import OnError
from keyfold.export.rows import FormatMismatches
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.arrow_numbers import Ints
from keyfold.log.manifest import Manifest
from keyfold.read.latest import Chosen
from keyfold.read.latest_keys import RowBits
from keyfold.read.log import Log
from keyfold.read.position import check_resumed
from keyfold.runtime.arrow_types import column_of, values_of
from keyfold.runtime.json_types import JsonObject
from keyfold.table.difference import live_rows, newer_keys
from keyfold.table.request import TableRequest
from keyfold.table.rows import ChosenRecords, HeldMemory, TableRows, VersionReplaced, replaced
from keyfold.table.table import ShownVersion, TableVersion
from keyfold.table.types import arrow_schema

EXAMPLES: Final = 20
TRIES: Final = 5


@dataclass(slots=True)
class VerifiedPartition:
    """What was found in one partition. `unjudged` says why it could not be judged; empty if it was."""

    partition: int
    rows: int = 0
    missing: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    different: dict[int, str] = field(default_factory=dict)
    unjudged: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every row was proved."""
        return not (self.missing or self.unknown or self.different or self.unjudged)

    def lines(self) -> Iterator[str]:
        """Yield what is wrong, the first few of each kind."""
        if self.unjudged:
            yield f"cannot be judged: {self.unjudged}; sync first"
        for what, offsets in (("is missing in the table", self.missing), ("is not in the log", self.unknown)):
            yield from (f"offset {offset} {what}" for offset in islice(offsets, EXAMPLES))
        yield from (f"offset {offset} differs: {why}" for offset, why in islice(self.different.items(), EXAMPLES))

    def as_json(self) -> JsonObject:
        """For `--json`."""
        return {
            "partition": self.partition,
            "rows": self.rows,
            "is_right": self.is_right,
            "missing": list(self.missing[:EXAMPLES]),
            "unknown": list(self.unknown[:EXAMPLES]),
            "different": {str(offset): why for offset, why in islice(self.different.items(), EXAMPLES)},
            "unjudged": self.unjudged,
        }


def verify(
    log: Log,
    version: TableVersion,
    request: TableRequest,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[VerifiedPartition]:
    """Compare the current snapshot of a table with the log, partition by partition.

    `progress` gets numbers of rows. Raises what reading a log raises, and `NotKeyfoldsTable`.
    """
    return [
        _verified(log, version, request, number, version.shown[number], progress) for number in sorted(version.shown)
    ]


def _verified(
    log: Log,
    version: TableVersion,
    request: TableRequest,
    number: int,
    shown: ShownVersion,
    progress: Callable[[int], None],
) -> VerifiedPartition:
    for _ in range(TRIES):
        manifest = log.manifest(number)
        try:
            return _Comparison(log, version, request, number, shown, manifest, progress).done()
        except VersionReplaced:
            continue
    found = VerifiedPartition(number)
    found.unjudged = f"its version was replaced and deleted while it was read, {TRIES} times in a row"
    return found


class _Comparison:
    """One partition of a table and one version of its log."""

    def __init__(
        self,
        log: Log,
        version: TableVersion,
        request: TableRequest,
        number: int,
        shown: ShownVersion,
        manifest: Manifest,
        progress: Callable[[int], None],
    ) -> None:
        self._log = log
        self._version = version
        self._request = request
        self._place = log.place(number)
        self._shown = shown
        self._manifest = manifest
        self._progress = progress
        self._found = VerifiedPartition(number)
        self._archive = SchemaArchive(log.store, log.topics_dir)

    def done(self) -> VerifiedPartition:
        """Compare."""
        try:
            check_resumed(self._shown.anchor, self._shown.next_offset, self._manifest)
        except OffsetOutOfRange as error:
            self._found.unjudged = error.message.removeprefix(f"{self._place}: ")
            return self._found
        try:
            live = list(live_rows(self._log.store, self._place, self._manifest))
        except ObjectNotFound as error:
            raise replaced(self._log, self._place, error) from error
        wanted = np.concatenate([_NO_INTS, *(offsets for _, _, offsets in live)])
        wanted = wanted[wanted < self._shown.next_offset]
        self._found.missing += self._decodable(live, np.setdiff1d(wanted, self._judged(live, wanted))).tolist()
        return self._found

    def _judged(self, live: Sequence[tuple[int, Ints, Ints]], wanted: Ints) -> Ints:
        """Judge every row, and return the offsets of all."""
        offsets = [_NO_INTS]
        newer = self._newer()
        for table in self._tables():
            found = table.column("offset").to_numpy()
            offsets.append(found)
            is_old = ~np.isin(found, wanted)
            keys = values_of(table.column(self._request.key_column).cast(pa.binary()).filter(column_of(is_old)))
            old = zip(found[is_old].tolist(), keys, strict=True)
            self._found.unknown += [offset for offset, key in old if key not in newer]
            self._compare(live, table.filter(column_of(~is_old)).sort_by("offset"))
            self._progress(table.num_rows)
        present = np.concatenate(offsets)
        self._found.rows = len(present)
        repeated, counts = np.unique(present, return_counts=True)
        self._found.different |= dict.fromkeys(repeated[counts > 1].tolist(), "the table has it more than once")
        return present

    def _newer(self) -> set[bytes]:
        """Return the keys of all records after the shown end."""
        try:
            keys = newer_keys(self._log.store, self._place, self._manifest, self._shown.next_offset)
        except ObjectNotFound as error:
            raise replaced(self._log, self._place, error) from error
        return set(values_of(keys))

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the visible rows of the partition."""
        number = self._place.partition
        for file in self._version.data_files:
            if number in file.partitions:
                for table in self._version.visible(file):
                    mine = table.column("partition").to_numpy() == number
                    yield table if mine.all() else table.filter(column_of(mine))

    def _expected(self, live: Sequence[tuple[int, Ints, Ints]], offsets: Ints) -> pa.Table:
        """Return the rows that the records with these offsets make."""
        bits = tuple(RowBits(entry.record_count) for entry in self._manifest.segments)
        for number, at, found in live:
            bits[number].add(at[np.isin(found, offsets)])
        records = ChosenRecords(self._log, self._place, Chosen(self._manifest, bits), HeldMemory())
        rows = TableRows(self._version, self._request, self._archive, [records])
        return pa.concat_tables([*rows.tables(records, FormatMismatches()), arrow_schema(rows.schema).empty_table()])

    def _decodable(self, live: Sequence[tuple[int, Ints, Ints]], missing: Ints) -> Ints:
        """Return the missing rows that there should be: not those of records that are left out on request."""
        if self._request.on_error is not OnError.SKIP or not len(missing):
            return missing
        return self._expected(live, missing).column("offset").to_numpy()

    def _compare(self, live: Sequence[tuple[int, Ints, Ints]], table: pa.Table) -> None:
        """Compare rows, in the order of their offsets, with the records that the log has there."""
        expected = self._expected(live, table.column("offset").to_numpy())
        names = [name for name in expected.column_names if name in table.column_names]
        if all(table.column(name).equals(expected.column(name)) for name in names):
            return
        known = {row["offset"]: row for row in expected.select(names).to_pylist()}
        for row in table.select(names).to_pylist():
            why = _difference(row, known.get(row["offset"]))
            if why:
                self._found.different.setdefault(row["offset"], why)


_NO_INTS: Final[Ints] = np.zeros(0, np.int64)


def _difference(row: Mapping[str, object], expected: Mapping[str, object] | None) -> str:
    """Return what differs; NaN is equal to itself here."""
    if expected is None:
        return "the record cannot be decoded"
    for name, value in expected.items():
        if row[name] != value and repr(row[name]) != repr(value):
            return f"`{name}` is {row[name]!r}, and {value!r} in the log"
    return ""
