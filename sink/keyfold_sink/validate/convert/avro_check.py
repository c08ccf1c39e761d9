"""Check Avro with schema ids, as Confluent's serializers write it.

    in the value or key      0 and the id in 4 bytes, or 1 and the GUID in 16, then the data
    in a header              the same 5 or 17 bytes in `__value_schema_id` or `__key_schema_id`; the value is all data

An id in a header takes precedence over one before the data. A batch is divided by id. If a batch has more new ids than
the cache holds, the groups are checked in several rounds.

Many values of one schema are first read together, field by field, with numpy and Arrow. That says only whether all of
them are valid. Where it does not say so, and where values are few, each one is checked by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import numpy as np

from keyfold.formats import confluent_framing
from keyfold.formats.avro_vector import Misplaced, padded, pass_over
from keyfold.formats.confluent_framing import ID_BYTES, has_guid, head_of
from keyfold.formats.errors import Unsuited
from keyfold.formats.format import RecordPart
from keyfold_sink.validate.convert.api import SchemasPending
from keyfold_sink.validate.convert.avro_layout import AvroDataInvalid, Step
from keyfold_sink.validate.convert.columns import BatchId, ColumnFailure, Headers
from keyfold_sink.validate.convert.registry_api import SchemaKey
from keyfold_sink.validate.convert.schemas import KnownSchema, Schemas

KEY_HEADER: Final = RecordPart.KEY.schema_header
VALUE_HEADER: Final = RecordPart.VALUE.schema_header

# Fewer values, and large ones, are checked faster one by one.
_MANY: Final = 200
_AT_ONCE: Final = 2_000
_AT_ONCE_BYTES: Final = 8 * 1024 * 1024

# The maximum nesting of a value times about three calls per level, if the interpreter's own limit is lower.
_DEEPEST: Final = 10_000


class NotFramed(Exception):
    """A value has no valid schema id; `cause` is the short reason."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of one schema: their indexes, and where their data begins."""

    key: SchemaKey
    begin: int
    indexes: Sequence[int]


@dataclass(slots=True)
class _Progress:
    """The results so far of a batch that is being checked."""

    batch: BatchId
    failures: list[ColumnFailure]
    left: list[_Group] = field(default_factory=list)


class AvroCheck:
    """The avro converter for one column: keys or values."""

    def __init__(self, schemas: Schemas, header: str) -> None:
        self._schemas = schemas
        self._header = header
        self._in_progress: dict[tuple[str, int], _Progress] = {}

    def failures(self, batch: BatchId, column: Sequence[bytes | None], headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        self._schemas.pending()  # take the answers that have arrived
        at = batch[:2]
        progress = self._in_progress.pop(at, None)
        if progress is None or progress.batch != batch:
            progress = self._begun(batch, column, headers)
        left: list[_Group] = []
        for group in progress.left:
            answer = self._schemas.find(group.key)
            if answer is None:
                left.append(group)
            elif isinstance(answer, KnownSchema):
                progress.failures += _judge(answer, group, column)
            else:
                progress.failures += [ColumnFailure(index, answer.cause, answer.message) for index in group.indexes]
        if left:
            progress.left = left
            self._in_progress[at] = progress
            self._schemas.request([group.key for group in left])
            raise SchemasPending
        return sorted(progress.failures, key=lambda failure: failure.index)

    def pending(self) -> bool:
        """See `ColumnCheck`."""
        return self._schemas.pending()

    def close(self) -> None:
        """See `ColumnCheck`."""
        self._schemas.close()

    def _begun(self, batch: BatchId, column: Sequence[bytes | None], headers: Headers) -> _Progress:
        progress = _Progress(batch, [])
        named = _named(self._header, column, headers) if any(headers) else {}
        if named:
            self._begin_named(progress, column, named)
        elif None not in column:
            self._begin(progress, column, range(len(column)))
        else:
            self._begin(progress, column, [index for index, value in enumerate(column) if value is not None])
        return progress

    def _begin_named(
        self, progress: _Progress, column: Sequence[bytes | None], named: Mapping[int, Sequence[bytes]]
    ) -> None:
        """Group records that have their schema's id in a header."""
        framed = [index for index, value in enumerate(column) if value is not None and index not in named]
        self._begin(progress, column, framed)
        by_id: dict[bytes, list[int]] = {}
        for index, ids in named.items():
            if len(set(ids)) == 1:
                by_id.setdefault(ids[0], []).append(index)
            else:
                message = f"has {len(ids)} different headers {self._header}"
                progress.failures.append(ColumnFailure(index, "two schema ids", message))
        for head, indexes in by_id.items():
            try:
                key, end = read_head(head)
                if end != len(head):
                    raise NotFramed("no schema id", f"{len(head) - end} bytes follow the schema id")
            except NotFramed as error:
                message = f"has a header {self._header} without a valid schema id: {error}"
                progress.failures += [ColumnFailure(index, error.cause, message) for index in indexes]
            else:
                progress.left.append(_Group(key, 0, indexes))

    @staticmethod
    def _begin(progress: _Progress, column: Sequence[bytes | None], indexes: Sequence[int]) -> None:
        """Group records by the schema id before their data."""
        if not indexes:
            return
        heads = [column[index][:ID_BYTES] for index in indexes]  # type: ignore[index]  # no nulls among them
        first = heads[0]
        by_head: dict[bytes, Sequence[int]] = {}
        if heads.count(first) == len(heads) and not has_guid(first):
            by_head[first] = indexes
        else:
            for index in indexes:
                value = column[index]
                assert value is not None
                by_head.setdefault(head_of(value), []).append(index)  # type: ignore[attr-defined]  # these are lists; only a given sequence is none
        for head, of_head in by_head.items():
            try:
                key, begin = read_head(head)
            except NotFramed as error:
                progress.failures += [ColumnFailure(index, error.cause, str(error)) for index in of_head]
            else:
                progress.left.append(_Group(key, begin, of_head))


def read_head(head: bytes) -> tuple[SchemaKey, int]:
    """Return the schema that the first bytes name, and where the data begins. Raise `NotFramed`."""
    try:
        return confluent_framing.read_head(head)
    except confluent_framing.NoSchemaId as error:
        if error.has_magic_byte:
            raise NotFramed("no schema id", error.message) from error
        message = f"{error.start} instead of the 0 that Confluent's serializers write before a schema id"
        raise NotFramed("no magic byte", message) from error


def _named(header: str, column: Sequence[bytes | None], headers: Headers) -> dict[int, list[bytes]]:
    """Return the indexes of records with schema ids in their headers, and these ids."""
    return {
        index: ids
        for index, pairs in enumerate(headers)
        if pairs
        and column[index] is not None
        and (ids := [value for name, value in pairs if name == header and value is not None])
    }


def _judge(schema: KnownSchema, group: _Group, column: Sequence[bytes | None]) -> list[ColumnFailure]:
    """Return the failures among the records of one schema."""
    values = [value for value in map(column.__getitem__, group.indexes) if value is not None]  # all of them
    parts = (values[first : first + _AT_ONCE] for first in range(0, len(values), _AT_ONCE))
    if all(_are_valid(schema, group.begin, part) for part in parts):
        return []
    with _deep():
        return [
            ColumnFailure(index, *failure)
            for index, value in zip(group.indexes, values, strict=True)
            if (failure := _failure(schema.check, group, value))
        ]


def _are_valid(schema: KnownSchema, begin: int, values: Sequence[bytes]) -> bool:
    sizes = list(map(len, values))
    if schema.action is not None and len(values) >= _MANY and sum(sizes) <= _AT_ONCE_BYTES:
        lengths = np.array(sizes, np.int64)
        ends = np.cumsum(lengths)
        with suppress(Misplaced, Unsuited, RecursionError):
            pass_over(schema.action, padded(b"".join(values)), ends - lengths + begin, ends)
            return True
    try:
        return list(map(schema.check, values, repeat(begin))) == sizes
    except (AvroDataInvalid, IndexError, UnicodeDecodeError, RecursionError):
        return False


def _failure(check: Step, group: _Group, value: bytes) -> tuple[str, str] | None:
    """Return the cause and message for one value, None if it is valid."""
    size = len(value)
    try:
        end = check(value, group.begin)
    except AvroDataInvalid as error:
        return "does not decode", f"does not decode with schema {group.key}: {error}"
    except UnicodeDecodeError as error:
        return "does not decode", f"does not decode with schema {group.key}: a string is not UTF-8 ({error.reason})"
    except RecursionError:
        return "does not decode", f"does not decode with schema {group.key}: the value is nested too deeply"
    except IndexError:
        end = size + 1
    if end > size:
        return "does not decode", f"does not decode with schema {group.key}: the value is truncated at {size} bytes"
    if end < size:
        return "bytes left over", f"has {size - end} extra bytes after the value of schema {group.key}"
    return None


@contextmanager
def _deep() -> Iterator[None]:
    """Raise the interpreter's recursion limit for deeply nested values; these calls use no C stack."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
