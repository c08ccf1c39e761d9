"""Encoder of columns of records into Avro, batch by batch.

A record is  prefix (offset, timestamp, type, key's branch and length) · key · middle (value's branch and length) ·
value · suffix (headers, leader epoch). numpy computes the prefixes, middles and suffixes of a whole batch. Then Arrow
joins the five columns record by record in C; the offsets of the result are the starts of the records. So Python code
only runs per record for records with headers.

Large values are not copied into Arrow and out again: Arrow joins what is before and after them, and each record is
three pieces until its block is joined for compression.

For a few records, numpy's set-up costs more than encoding them one by one (`encode_few`). All ways give the same bytes.

Invariant: `part(i, i + 1)`, joined, is record i, for any input that `check_columns` accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.log.avro import MAX_BLOCK_BYTES, varint
from keyfold.log.record import TIMESTAMP_TYPES, Header, RecordColumns, check_columns, check_lengths
from keyfold.log.waiting_records import JoinedBytes, has_large_values
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, ArrowScalar, buffer_of, nulls, numbers_in, values_of
from keyfold.runtime.buffers import Bytes

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

# For fewer records the loop is faster than numpy (measured: bench_codec.py).
FEW_RECORDS: Final = 24
# Columns are joined in slices of about this many bytes, so that a large batch is not held twice.
SLICE_BYTES: Final = 4 << 20
# Arrow's 32-bit offsets serve up to here; a larger slice (one record of more than 1 GiB) takes 64-bit ones.
SMALL_BINARY_BYTES: Final = 1 << 30

# Keys are joined before Arrow gets them if the first has this size: a quarter less CPU at 1 KB, half at 10 KB, and more
# CPU below (measured).
_JOINED_BYTES: Final = 1000
# Of a record with a large value: what is before it, the value, and what is after it.
_PIECES: Final = 3
# What 32-bit offsets reach.
_INT32_MAX: Final = 2**31 - 1

_INT64 = np.int64
_SHIFTS: Final = np.arange(0, 70, 7, dtype=np.uint64)[:, None]
_NULL_BRANCH: Final = 0
_BYTES_BRANCH: Final = 2


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Records as raw block bytes, with their columns of the index. All columns have one row per record.

    `payload` is one piece, or a list of three pieces per record. `ends` are the positions in it after each record.
    `keys` is an Arrow `binary` array.
    """

    payload: memoryview | list[bytes]
    ends: Ints
    offsets: Ints
    timestamps: Ints
    keys: ArrowArray
    is_tombstone: Flags

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, first: int, end: int, *, stays: bool = False) -> Sequence[Bytes]:
        """Return the bytes of records `first` to `end`, in pieces. If they `stay`, in one that takes no more memory."""
        pieces: Sequence[Bytes]
        if isinstance(self.payload, list):
            pieces = self.payload[_PIECES * first : _PIECES * end]
        else:
            pieces = (self.payload[int(self.ends[first - 1]) if first else 0 : int(self.ends[end - 1])],)
        return (b"".join(pieces),) if stays else pieces


@dataclass(frozen=True, slots=True)
class Prepared:
    """Checked columns as arrays; large values stay as they are.

    `headers` is None if no record has any, `epochs` an int if all are equal.
    """

    offsets: Ints
    timestamps: Ints
    types: Octets
    keys: ArrowArray
    values: ArrowArray | Sequence[bytes | None]
    headers: ArrowArray | None
    epochs: Ints | int

    def slices(
        self, slice_bytes: int = SLICE_BYTES, small_binary_bytes: int = SMALL_BINARY_BYTES
    ) -> Iterator[EncodedRecords]:
        """Yield the encoded records in pieces of about `slice_bytes`."""
        ends = _offsets(self.keys)[1:].astype(_INT64, copy=False)
        if isinstance(self.values, pa.Array):
            ends = ends + _offsets(self.values)[1:]
        if self.headers is not None:
            ends = ends + _offsets(self.headers)[1:]
        cuts = [0, len(ends)] if ends[-1] <= slice_bytes * 1.5 else _cuts(ends, slice_bytes)
        for start, end in pairwise(cuts):
            part = slice(start, end)
            content_bytes = int(ends[end - 1]) - int(ends[start - 1] if start else 0)
            kind = pa.large_binary() if content_bytes > small_binary_bytes else pa.binary()
            yield _encode_slice(self if end - start == len(ends) else self._part(part), kind)

    def _part(self, part: slice) -> Prepared:
        return Prepared(
            self.offsets[part],
            self.timestamps[part],
            self.types[part],
            self.keys[part],
            self.values[part],
            None if self.headers is None else self.headers[part],
            self.epochs if isinstance(self.epochs, int) else self.epochs[part],
        )


def prepare(columns: RecordColumns, last_offset: int) -> Prepared:
    """Return columns as arrays. Raises `ValueError`, as `check_columns` does, if they cannot follow `last_offset`."""
    check_lengths(columns)
    try:
        offsets, timestamps = np.array(columns.offsets, _INT64), np.array(columns.timestamps, _INT64)
        types = _types(columns.timestamp_types)
        epochs = _epochs(columns.leader_epochs)
    except (OverflowError, ValueError):
        check_columns(columns, last_offset)  # raises an error that names the number
        raise
    if offsets[0] <= last_offset or (offsets[1:] <= offsets[:-1]).any():
        check_columns(columns, last_offset)
    return Prepared(
        offsets,
        timestamps,
        types,
        _binary(columns.keys),
        columns.values if has_large_values(columns.values) else _binary(columns.values),
        _encode_headers(columns.headers),
        epochs,
    )


def _types(types: Sequence[int]) -> Octets:
    # bytes() is the fastest way, but not for arrays of wider numbers.
    is_bytes = isinstance(types, list | tuple | bytearray)
    array = np.frombuffer(bytes(types), np.uint8) if is_bytes else np.array(types, _INT64)
    if int(array.min()) < 0 or int(array.max()) >= len(TIMESTAMP_TYPES):
        raise ValueError("an unknown timestamp type")
    return array.astype(np.uint8, copy=False)


def _epochs(epochs: Sequence[int]) -> Ints | int:
    first = epochs[0]
    if isinstance(epochs, list) and epochs.count(first) == len(epochs):
        array = np.array([first], _INT64)
    else:
        array = np.array(epochs, _INT64)
    least, most = int(array.min()), int(array.max())
    if least < -(2**31) or most >= 2**31:
        raise ValueError("a leader epoch does not fit into 32 bits")
    return least if least == most else array


def _binary(values: Sequence[bytes | None]) -> ArrowArray:
    """Return bytes as an Arrow array, with 64-bit offsets only if 32 bits are too few."""
    if isinstance(values, JoinedBytes):
        return _joined(values)
    if len(values[0] or b"") >= _JOINED_BYTES:
        return _joined(JoinedBytes(values))
    array: ArrowArray | ArrowChunks = pa.array(values, pa.binary())
    return pa.array(values, pa.large_binary()) if isinstance(array, pa.ChunkedArray) else array


def _joined(values: JoinedBytes) -> ArrowArray:
    """Return bytes as an Arrow array without a copy of them. `pa.array` copies several times, as its buffer grows."""
    data, lengths = values.joined(), values.lengths()
    nulls = lengths < 0
    bounds = np.zeros(len(lengths) + 1, np.int32 if len(data) <= _INT32_MAX else _INT64)
    np.cumsum(lengths.clip(0), out=bounds[1:])
    return _strings(bounds, pa.py_buffer(data), nulls if nulls.any() else None)


def _strings(bounds: npt.NDArray[Any], data: pa.Buffer, nulls: Flags | None = None) -> ArrowArray:
    """Return the byte strings between neighbouring `bounds` in `data`, with offsets as wide as `bounds`."""
    is_large = bounds.dtype == np.int64
    array_type, kind = (pa.LargeBinaryArray, pa.large_binary()) if is_large else (pa.BinaryArray, pa.binary())
    valid = None if nulls is None else buffer_of(np.packbits(~nulls, bitorder="little"))
    return array_type.from_buffers(kind, len(bounds) - 1, [valid, buffer_of(bounds), data])


def _cuts(ends: Ints, size_bytes: int) -> list[int]:
    """Return row numbers that cut `ends` into runs of about `size_bytes`, each of at least one row."""
    cuts = [0]
    while cuts[-1] < len(ends):
        begin = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, begin + size_bytes, side="right"))))
    return cuts


def _encode_slice(records: Prepared, kind: pa.DataType) -> EncodedRecords:
    n = len(records.offsets)
    keys, values = records.keys.cast(kind), records.values
    prefix = _Ragged(n)
    prefix.add_varint(records.offsets)
    prefix.add_varint(records.timestamps)
    prefix.add_byte(records.types * np.uint8(2))
    prefix.add_union(_lengths(keys), _nulls(keys))
    middle = _Ragged(n)
    suffix = _suffix(records.headers, records.epochs, n, kind)
    payload: memoryview | list[bytes]
    if isinstance(values, pa.Array):
        null_values = _nulls(values)
        middle.add_union(_lengths(values), null_values)
        joined = _join(kind, prefix.array(kind), keys, middle.array(kind), values.cast(kind), *suffix)
        bounds = _offsets(joined).astype(_INT64, copy=False)
        payload = memoryview(cast("pa.Buffer", joined.buffers()[2]))[int(bounds[0]) : int(bounds[-1])]
        ends = bounds[1:] - bounds[0]
    else:
        null_values = np.fromiter((value is None for value in values), np.bool_, n) if None in values else None
        present = cast("Sequence[bytes]", values if null_values is None else [value or b"" for value in values])
        middle.add_union(np.fromiter(map(len, present), _INT64, n), null_values)
        payload = _pieces(_join(kind, prefix.array(kind), keys, middle.array(kind)), present, suffix, kind)
        ends = _ends(payload)
    null_keys = _nulls(keys)
    if null_values is None:
        tombstones = np.zeros(n, np.bool_)
    else:
        tombstones = null_values if null_keys is None else null_values & ~null_keys
    index_keys = keys.cast(pa.binary())
    return EncodedRecords(
        payload,
        ends,
        records.offsets,
        records.timestamps,
        pa.concat_arrays([index_keys]) if index_keys.offset else index_keys,
        tombstones,
    )


def _join(kind: pa.DataType, *parts: ArrowArray | ArrowScalar) -> ArrowArray:
    """Join columns of bytes record by record. Scalars are columns of one value, and at least one part is no scalar."""
    found: ArrowArray = pc.binary_join_element_wise(  # type: ignore[call-overload]  # the stubs know no scalars
        *parts, pa.scalar(b"", kind), null_handling="replace", null_replacement=""
    )
    return found


def _pieces(
    heads: ArrowArray, values: Sequence[bytes], suffix: Sequence[ArrowArray | ArrowScalar], kind: pa.DataType
) -> list[bytes]:
    """Return the pieces of all records, `_PIECES` of each."""
    n = len(values)
    pieces = [b""] * (_PIECES * n)
    pieces[0::_PIECES] = values_of(heads)
    pieces[1::_PIECES] = values
    pieces[2::_PIECES] = values_of(_join(kind, *suffix, nulls(n, kind)))
    return pieces


def _ends(pieces: list[bytes]) -> Ints:
    """Return the position after each record."""
    lengths = np.fromiter(map(len, pieces), _INT64, len(pieces))
    return np.cumsum(lengths.reshape(-1, _PIECES).sum(axis=1))


def _suffix(
    headers: ArrowArray | None, epochs: Ints | int, n: int, kind: pa.DataType
) -> tuple[ArrowArray | ArrowScalar, ...]:
    """Return headers and leader epochs: usually one scalar, because all records have the same."""
    if isinstance(epochs, int):
        epoch = varint(epochs)
        if headers is None:
            return (pa.scalar(b"\0" + epoch, kind),)
        return headers.cast(kind), pa.scalar(epoch, kind)
    ragged = _Ragged(n)
    if headers is None:
        ragged.add_byte(np.zeros(n, np.uint8))
        ragged.add_varint(epochs)
        return (ragged.array(kind),)
    ragged.add_varint(epochs)
    return headers.cast(kind), ragged.array(kind)


class _Ragged:
    """A column of short byte strings, built from numbers.

    Each number becomes some rows of a byte matrix with one column per record; a mask selects the rows of each record.
    Rows that all records have need no mask. Most rows are like that, because the numbers of a batch have similar sizes.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._octets: list[Octets] = []
        self._masks: list[Flags | None] = []

    def add_byte(self, octets: Octets) -> None:
        self._add(octets[None, :], None)

    def add_varint(self, values: Ints) -> None:
        self._add_unsigned(((values << 1) ^ (values >> 63)).view(np.uint64), None)

    def add_union(self, lengths: Ints, nulls: Flags | None) -> None:
        """Add the branch of ["null", "bytes"], and the length of bytes."""
        if nulls is None:
            self.add_byte(np.full(self._n, _BYTES_BRANCH, np.uint8))
            self._add_unsigned((lengths << 1).view(np.uint64), None)
        else:
            self.add_byte(np.where(nulls, np.uint8(_NULL_BRANCH), np.uint8(_BYTES_BRANCH)))
            self._add_unsigned((lengths << 1).view(np.uint64), ~nulls)

    def _add_unsigned(self, values: npt.NDArray[np.uint64], there: Flags | None) -> None:
        """Add varints: seven bits per byte, low bits first; the high bit of a byte means that another byte follows."""
        least_bytes, bytes_max = _varint_bytes(int(values.min())), _varint_bytes(int(values.max()))
        rest = values >> _SHIFTS[:bytes_max]
        octets = rest.astype(np.uint8)
        mask = there
        if least_bytes == bytes_max:
            octets[:-1] |= np.uint8(0x80)
            octets[-1] &= np.uint8(0x7F)
        else:
            goes_on = rest >= np.uint64(0x80)
            octets &= np.uint8(0x7F)
            octets |= goes_on.view(np.uint8) << np.uint8(7)
            mask = np.ones(octets.shape, np.bool_)
            mask[1:] = goes_on[:-1]
            if there is not None:
                mask &= there
        self._add(octets, mask)

    def _add(self, octets: Octets, mask: Flags | None) -> None:
        self._octets.append(octets)
        self._masks.append(mask)

    def array(self, kind: pa.DataType) -> ArrowArray:
        """Return the strings as an Arrow array of `kind`."""
        n = self._n
        matrix = np.concatenate(self._octets).T
        bounds = np.zeros(n + 1, np.int64 if kind == pa.large_binary() else np.int32)
        if all(mask is None for mask in self._masks):
            bounds[:] = np.arange(0, (n + 1) * matrix.shape[1], matrix.shape[1])
            data = matrix.reshape(-1)
        else:
            mask = np.ones(matrix.shape[::-1], np.bool_)
            row = 0
            for octets, part in zip(self._octets, self._masks, strict=True):
                if part is not None:
                    mask[row : row + len(octets)] = part
                row += len(octets)
            np.cumsum(np.add.reduce(mask, 0, np.int32), out=bounds[1:])
            data = matrix[mask.T]
        return _strings(bounds, buffer_of(data))


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _offsets(array: ArrowArray) -> npt.NDArray[np.int64 | np.int32]:
    """Return the n + 1 offsets of a binary array into its data."""
    width: type[np.int64 | np.int32] = np.int64 if array.type == pa.large_binary() else np.int32
    return numbers_in(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]


def _size(array: ArrowArray) -> int:
    bounds = _offsets(array)
    return int(bounds[-1]) - int(bounds[0])


def _lengths(array: ArrowArray) -> Ints:
    lengths: Ints = np.diff(_offsets(array)).astype(_INT64, copy=False)
    return lengths


def _nulls(array: ArrowArray) -> Flags | None:
    """Return a mask of the null rows; None if there are none."""
    if not array.null_count:
        return None
    flags: Flags = array.is_null().to_numpy(zero_copy_only=False)
    return flags


def _encode_headers(headers: Sequence[Sequence[Header] | None]) -> ArrowArray | None:
    """Return the encoded headers of each record; None if no record has any."""
    if not any(headers):
        return None
    return pa.array([headers_bytes(h) if h else b"\0" for h in headers], pa.large_binary())


def headers_bytes(headers: Sequence[Header]) -> bytes:
    """Return one record's headers as an Avro array of one block. `headers` is not empty."""
    parts = [varint(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += (varint(len(raw)), raw)
        parts += (b"\0",) if value is None else (b"\2", varint(len(value)), value)
    parts.append(b"\0")
    return b"".join(parts)


def encode_few(columns: RecordColumns) -> EncodedRecords:
    """Encode checked columns record by record."""
    pieces: list[bytes] = []  # joined only with their block, because a record may have many megabytes
    for offset, timestamp, kind, key, value, headers, epoch in zip(
        columns.offsets,
        columns.timestamps,
        columns.timestamp_types,
        columns.keys,
        columns.values,
        columns.headers,
        columns.leader_epochs,
        strict=True,
    ):
        head = varint(int(offset)) + varint(int(timestamp)) + bytes((2 * kind,))
        head += b"\0" if key is None else b"\2" + varint(len(key)) + key
        head += b"\0" if value is None else b"\2" + varint(len(value))
        pieces += (head, value or b"", (headers_bytes(headers) if headers else b"\0") + varint(int(epoch)))
    return EncodedRecords(
        pieces,
        _ends(pieces),
        np.array(columns.offsets, _INT64),
        np.array(columns.timestamps, _INT64),
        pa.array(list(columns.keys), pa.binary()),
        np.fromiter(
            (v is None and k is not None for k, v in zip(columns.keys, columns.values, strict=True)),
            np.bool_,
            len(columns),
        ),
    )


def check_sizes(encoded: EncodedRecords) -> None:
    """Raise `ValueError` if a record is larger than an Avro block can be."""
    if int(encoded.ends[-1]) > MAX_BLOCK_BYTES:
        lengths = np.diff(encoded.ends, prepend=0)
        if int(lengths.max()) > MAX_BLOCK_BYTES:
            offset = int(encoded.offsets[int(lengths.argmax())])
            raise ValueError(f"record at offset {offset} is larger than an Avro block")
