"""Avro's primitives at many positions of raw bytes at once, as Arrow arrays of the reader's type.

Numbers are counted and checked by `keyfold.log.arrow_numbers`, bytes are cut out by Arrow. What is wrong is
`Misplaced`, what is better done one value at a time is `Unsuited`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.formats.avro_resolve import ReadLeaf
from keyfold.formats.avro_schema import Fixed, Logical
from keyfold.formats.errors import Unsuited
from keyfold.formats.logical_types import PER_SECOND, unit_of
from keyfold.log.arrow_headers import Spans, are_text, cut
from keyfold.log.arrow_numbers import Ints, Misplaced, Octets, read_numbers, refuse
from keyfold.runtime.arrow_types import ArrowArray, buffer_of, nulls

_DECIMAL_DIGITS: Final = 38
_DECIMAL_BYTES: Final = 15  # any number of this size has less than 38 digits
_FIXED_BYTES: Final = 64
_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_EARLY: Final = "its bytes end too early"
_NOT_TEXT: Final = "a string is not UTF-8"
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class Leaves:
    """Reads of some raw bytes. Positions ascend; none is read beyond its limit without notice."""

    def __init__(self, raw: bytes, *, checks_texts: bool = False) -> None:
        """`raw` ends with `PADDING` zeros. `checks_texts`: strings that are passed over must be UTF-8 too."""
        self.raw = raw
        self._checks_texts = checks_texts
        self.octets: Octets = np.frombuffer(raw, np.uint8)

    def numbers(self, at: Ints, limits: Ints) -> tuple[Ints, Ints]:
        """Numbers, and the positions behind them. Raises `Misplaced`."""
        values, at = read_numbers(self.octets, at)
        refuse(at > limits, _EARLY)
        return values, at

    def read(
        self, action: ReadLeaf, kind: pa.DataType | None, at: Ints, limits: Ints
    ) -> tuple[ArrowArray | None, Ints]:
        """Values as an array of `kind` (None: they are passed over), and the positions behind them."""
        written, logical = action.written, action.target.logical
        if isinstance(written, Fixed):
            at_end = at + written.size
            refuse(at_end > limits, _EARLY)
            return None if kind is None else self._fixed(at, written, logical, kind), at_end
        if written.kind == "null":
            return None if kind is None else nulls(len(at), kind), at
        if written.kind in {"int", "long"}:
            values, at = self.numbers(at, limits)
            if written.kind == "int":
                refuse((values < _INT_MIN) | (values > _INT_MAX), "a number is not an int")
            return None if kind is None else _counted(values, written.logical, logical, kind), at
        if written.kind in {"bytes", "string"}:
            return self._bytes(action, kind, at, limits)
        return self._flat(written.kind, kind, at, limits)

    def _flat(self, name: str, kind: pa.DataType | None, at: Ints, limits: Ints) -> tuple[ArrowArray | None, Ints]:
        size = {"boolean": 1, "float": 4, "double": 8}[name]
        refuse(at + size > limits, _EARLY)
        if name == "boolean":
            found: Any = self.octets[at]
            refuse(found > 1, "a byte is not a boolean")
            found = found.astype(np.bool_)
        else:
            found = self._gathered(at, size).view("<f4" if size == 4 else "<f8")[:, 0]
        return None if kind is None else as_kind(pa.array(found), kind), at + size

    def _gathered(self, at: Ints, size: int) -> Octets:
        """`size` bytes at each position."""
        gathered: Octets = self.octets[at[:, None] + np.arange(size)]
        return gathered

    def spans(self, at: Ints, limits: Ints) -> tuple[Spans, Ints]:
        """Where bytes with their length before them lie."""
        sizes, at = self.numbers(at, limits)
        refuse((sizes < 0) | (sizes > limits - at), "a length reaches beyond its end")
        return Spans(at, sizes), at + sizes

    def pass_text(self, spans: Spans) -> None:
        """Pass over strings. Raises `Misplaced` where one must be UTF-8 and is not."""
        if self._checks_texts and not are_text(self.raw, spans):
            raise Misplaced(0, _NOT_TEXT)

    def texts(self, spans: Spans) -> ArrowArray:
        """Bytes as strings. Raises `Misplaced` where one is not UTF-8."""
        try:
            return cut(self.raw, spans).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise Misplaced(0, _NOT_TEXT) from error

    def _bytes(
        self, action: ReadLeaf, kind: pa.DataType | None, at: Ints, limits: Ints
    ) -> tuple[ArrowArray | None, Ints]:
        spans, behind = (Spans(at, limits - at), limits) if action.is_rest else self.spans(at, limits)
        written, target = action.written, action.target
        is_text = not isinstance(written, Fixed) and written.kind == "string"
        if kind is None:
            if is_text:
                self.pass_text(spans)
            return None, behind
        if pa.types.is_decimal(kind):
            return self._decimals(spans, _scale(written.logical, target.logical), kind), behind
        found = self.texts(spans) if is_text or pa.types.is_string(kind) else cut(self.raw, spans)
        if target.logical is not None and target.logical.name == "uuid":
            canonical = pc.match_substring_regex(found, _UUID)
            if not pc.all(canonical).as_py():
                raise Unsuited
        return as_kind(found, kind), behind

    def _fixed(self, at: Ints, written: Fixed, logical: Logical | None, kind: pa.DataType) -> ArrowArray:
        if pa.types.is_decimal(kind):
            spans = Spans(at, np.full(len(at), written.size, np.int64))
            return self._decimals(spans, _scale(written.logical, logical), kind)
        if written.size > _FIXED_BYTES or not written.size:
            raise Unsuited
        found = np.ascontiguousarray(self._gathered(at, written.size))
        if pa.types.is_string(kind):
            return _uuid_texts(found)
        return as_kind(pa.Array.from_buffers(pa.binary(written.size), len(at), [None, buffer_of(found)]), kind)

    def _decimals(self, spans: Spans, scale: int, kind: pa.DataType) -> ArrowArray:
        """Big-endian numbers of any size as decimals."""
        longest = int(spans.sizes.max())
        if longest > _DECIMAL_BYTES or scale > _DECIMAL_DIGITS or not pa.types.is_decimal128(kind):
            raise Unsuited
        found = np.zeros((len(spans.starts), 16), np.uint8)
        found[(spans.sizes > 0) & (self.octets[spans.starts] > 0x7F)] = 0xFF
        for place in range(longest):
            has = spans.sizes > place
            found[has, place] = self.octets[(spans.starts + spans.sizes - 1 - place)[has]]
        wide = pa.decimal128(_DECIMAL_DIGITS, scale)
        return as_kind(pa.Array.from_buffers(wide, len(found), [None, buffer_of(found)]), kind)


def _scale(written: Logical | None, target: Logical | None) -> int:
    logical = written if written is not None and written.name == "decimal" else target
    assert logical is not None, "a decimal type must have a scale"
    return logical.scale


def _counted(values: Ints, written: Logical | None, target: Logical | None, kind: pa.DataType) -> ArrowArray:
    """Whole numbers as what they count."""
    if pa.types.is_floating(kind):
        return as_kind(pa.array(values.astype(np.float64)), kind)
    source, unit = unit_of(written)
    wanted, target_unit = unit_of(target)
    if source and source == wanted and unit != target_unit:
        times, parts = PER_SECOND[target_unit], PER_SECOND[unit]
        if times > parts:
            most = (2**63 - 1) // (times // parts)
            refuse((values > most) | (values < -most), "a number has more than 64 bits")
            values = values * (times // parts)
        else:
            values = values // (parts // times)
    if kind.bit_width == 32:
        refuse((values < _INT_MIN) | (values > _INT_MAX), "a number has more than 32 bits")
        return pa.array(values.astype(np.int32)).view(kind)
    return pa.array(values).view(kind)


def as_kind(found: ArrowArray, kind: pa.DataType) -> ArrowArray:
    """An array of `kind`. Raises `Misplaced` where a value has no place in it."""
    if found.type == kind:
        return found
    try:
        return found.cast(kind)
    except pa.ArrowInvalid as error:
        raise Misplaced(0, str(error)) from error


_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
_UUID_GROUPS: Final = (4, 6, 8, 10)


def _uuid_texts(found: Octets) -> ArrowArray:
    digits = _HEX[found].reshape(len(found), 32)
    parts: list[Octets] = []
    for low, high in zip((0, *_UUID_GROUPS), (*_UUID_GROUPS, 16), strict=True):
        parts += [digits[:, 2 * low : 2 * high], np.full((len(found), 1), ord("-"), np.uint8)]
    texts = np.ascontiguousarray(np.concatenate(parts[:-1], axis=1))
    bounds = np.arange(len(found) + 1, dtype=np.int32) * texts.shape[1]
    return pa.Array.from_buffers(pa.string(), len(found), [None, buffer_of(bounds), buffer_of(texts)])
