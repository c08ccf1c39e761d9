"""Avro's numbers at many positions at once.

One turn of the loop reads one byte of each number. Most columns have numbers of one length, so all of them go on or
none does; only where lengths differ the finished ones are held back.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

PADDING: Final = 64
"""Zeros that must stand behind raw bytes: some numbers may be read past the end before that is noticed."""

_MAX_SHIFT: Final = 63


class Misplaced(ValueError):
    """The record of a row (counted in what is decoded together) is not what its index says, or not a record."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def refuse(wrong: Flags, message: str) -> None:
    """Raise `Misplaced` for the first row that is wrong."""
    if wrong.any():
        raise Misplaced(int(wrong.argmax()), message)


def read_numbers(octets: Octets, at: Ints) -> tuple[Ints, Ints]:
    """The zigzag varints at positions `at`, and the positions behind them.

    `at` must be inside the bytes before the padding, or at most `PADDING` - 10 behind. Raises `Misplaced` for what
    `keyfold.log.avro.read_varint` refuses: more than 64 bits, or a last byte of nothing.
    """
    byte = octets[at]
    at = at + 1
    more = byte > 0x7F
    if not more.any():
        narrow = byte.astype(np.int64)
        return (narrow >> 1) ^ -(narrow & 1), at
    rest = (byte & 0x7F).astype(np.uint64)
    shift = 7
    while True:
        if more.all():
            byte = octets[at]
            at += 1
            refuse(byte == 0, "has a malformed varint")
        else:
            byte = np.where(more, octets[at], 0).astype(np.uint8, copy=False)
            at += more
            refuse(more & (byte == 0), "has a malformed varint")
        rest |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        if shift == _MAX_SHIFT:
            refuse(byte > 1, "has a malformed varint")
            break
        more = byte > 0x7F
        if not more.any():
            break
        shift += 7
    return (rest >> np.uint64(1)).view(np.int64) ^ -(rest & np.uint64(1)).view(np.int64), at
