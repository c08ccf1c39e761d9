"""Which records are the last of their keys, in as much memory as is given.

Rows come newest first. The first row of a key that is met is the key's last record; all that come after it are
superseded. So one set of the keys that were met is enough, and a row can be judged at once.

Below the first dirty offset a key occurs once. So the keys there are compared with the set and never enter it, and
memory depends on the dirty part alone. Hashes are compared first, in NumPy. Only a key whose hash is near one that was
met is looked up in the set.

Keys that do not fit the budget are judged in further walks over the same rows. A walk takes the keys whose hash is in
a range; it begins with all of the range, in slices, and where memory runs out it gives up the slices at the range's
end. What it gave up is the range of the next walk. Rows that were judged before their slice was given up were judged
rightly, and are judged the same way again.

    walk 1   |0 . . . . . . . . . . . .|x x x x x x x|    x: given up
    walk 2                             |. . . . . . .|
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.read.key_hash import HASHES, key_hashes
from keyfold.runtime.arrow_types import ArrowArray, values_of

Flags = npt.NDArray[np.bool_]

KEY_BYTES: Final = 144
"""What a key costs besides its own bytes, at most: Python's bytes object, its share of the set, and its hash."""

_SLICES: Final = 64
_SLOTS_PER_KEY: Final = 8
_WIDER: Final = 4
KEYS_AT_ONCE: Final = 16 * 1024


class KeyRange:
    """The keys of one range of hashes, `[low, high)`, that were met so far. `high` falls where memory runs out.

    It looks at what memory is left after each `keys_at_once` keys.
    """

    def __init__(self, low: int, high: int, memory_bytes: int, keys_at_once: int = KEYS_AT_ONCE) -> None:
        self.low = low
        self.high = high
        self.memory_bytes = memory_bytes
        self._keys_at_once = keys_at_once
        self._width = -(-(self.high - self.low) // _SLICES)
        self._met: list[set[bytes]] = [set() for _ in range(-(-(self.high - self.low) // self._width))]
        self._met_bytes = [0] * len(self._met)
        self._met_hashes: list[npt.NDArray[np.uint32]] = []
        self._met_slots: Flags | None = None
        self._slot_shift = 0

    @property
    def is_too_wide(self) -> bool:
        """Whether even the first slice does not fit: this walk has to be given up for a narrower one."""
        return len(self._met) == 1 and self._width > 1 and self.held_bytes > self.memory_bytes

    @property
    def held_bytes(self) -> int:
        """About the memory that the keys take."""
        return sum(self._met_bytes)

    def narrower(self) -> KeyRange:
        """A walk over the first slice alone."""
        return KeyRange(self.low, self.low + self._width, self.memory_bytes, self._keys_at_once)

    def next_one(self) -> KeyRange:
        """A walk over what comes next: wider than this one could be at last, because it narrows by itself."""
        high = min(HASHES, self.high + _WIDER * (self.high - self.low))
        return KeyRange(self.high, high, self.memory_bytes, self._keys_at_once)

    def take(self, keys: ArrowArray, is_tombstone: Flags, *, is_clean: bool = False) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the rows that hold a key's last record, and a value. All these rows are older than those taken before.

        `is_clean`: these rows and all later ones lie below the first dirty offset.
        """
        wanted = keys.is_valid().to_numpy(zero_copy_only=False)
        if is_clean:
            yield np.flatnonzero(self._not_met(keys, wanted & ~is_tombstone))
            return
        if self.high - self.low < HASHES:
            hashes = key_hashes(keys)
            wanted &= (hashes >= self.low) & (hashes < self.high)
        wanted_rows = np.flatnonzero(wanted)
        coded = keys.filter(pa.array(wanted)).dictionary_encode()
        last = np.zeros(len(coded.dictionary), np.int64)
        last[coded.indices.to_numpy()] = wanted_rows  # of several rows the last one stays
        step = self._keys_at_once
        for start in range(0, len(last), step):
            rows = last[start : start + step]
            is_new = self._meet(coded.dictionary[start : start + step])
            yield rows[is_new & ~is_tombstone[rows]]

    def _not_met(self, keys: ArrowArray, wanted: Flags) -> Flags:
        """Return for each row whether it is wanted and its key belongs to the range and was not met."""
        slots = self._slots()
        hashes = key_hashes(keys)
        wanted &= (hashes >= self.low) & (hashes < self.high)
        rows = np.flatnonzero(wanted)
        suspects = rows[slots[(hashes[rows] - self.low) >> self._slot_shift]]
        slices = ((hashes[suspects] - self.low) // self._width).tolist()
        suspect_keys = values_of(keys.take(suspects))
        wanted[suspects] = [key not in self._met[number] for key, number in zip(suspect_keys, slices, strict=True)]
        return wanted

    def _slots(self) -> Flags:
        """Return a flag for each slot, which is a small range of hashes: whether it has the hash of a met key."""
        if self._met_slots is None:
            most = self.high - self.low - 1
            slot_bits = (_SLOTS_PER_KEY * sum(map(len, self._met))).bit_length()
            self._slot_shift = max(0, most.bit_length() - slot_bits)
            self._met_slots = np.zeros((most >> self._slot_shift) + 1, np.bool_)
            for short in self._met_hashes:
                hashes = short.astype(np.int64)
                self._met_slots[(hashes[hashes < self.high] - self.low) >> self._slot_shift] = True
            self._met_hashes.clear()
        return self._met_slots

    def _meet(self, different: ArrowArray) -> Flags:
        """Note these different keys; which of them are of the range and were not met before."""
        keys: list[bytes] = values_of(different)
        hashes = key_hashes(different)
        slices = np.where((hashes >= self.low) & (hashes < self.high), (hashes - self.low) // self._width, -1)
        is_new = np.zeros(len(keys), np.bool_)
        order = np.argsort(slices, kind="stable")
        bounds = np.searchsorted(slices[order], np.arange(len(self._met) + 1))
        for number, met in enumerate(self._met):
            members = order[bounds[number] : bounds[number + 1]].tolist()
            fresh = [i for i in members if keys[i] not in met]
            is_new[fresh] = True
            met.update([keys[i] for i in fresh])
            self._met_bytes[number] += sum(len(keys[i]) for i in fresh) + KEY_BYTES * len(fresh)
        self._met_hashes.append(hashes[is_new].astype(np.uint32))
        self._make_room()
        return is_new

    def _make_room(self) -> None:
        while len(self._met) > 1 and self.held_bytes > self.memory_bytes:
            self._met.pop()
            self._met_bytes.pop()
            self.high = self.low + self._width * len(self._met)


class RowBits:
    """One bit for each row of a segment."""

    def __init__(self, row_count: int) -> None:
        self._bits = np.zeros(-(-row_count // 8), np.uint8)

    def add(self, rows: npt.NDArray[np.int64]) -> None:
        """Set the bits of these rows."""
        np.bitwise_or.at(self._bits, rows >> 3, (1 << (rows & 7)).astype(np.uint8))

    def __bool__(self) -> bool:
        return bool(self._bits.any())

    def count(self) -> int:
        """Count the bits that are set."""
        return int.from_bytes(self._bits.tobytes(), "little").bit_count()

    def flags(self, start: int, count: int) -> Flags:
        """The bits of `count` rows from `start`, as flags."""
        first = start >> 3
        bits: npt.NDArray[np.uint8] = np.unpackbits(self._bits[first : -(-(start + count) // 8)], bitorder="little")
        return bits[start & 7 : (start & 7) + count].astype(np.bool_)
