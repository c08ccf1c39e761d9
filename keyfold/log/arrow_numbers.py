"""Reader of Avro's varints at many positions at once.

One turn of the loop reads one byte of each number. In most columns all numbers have the same length and end together;
only if lengths differ are the finished numbers masked.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

PADDING: Final = 64
"""Zeros that must follow the raw bytes: some numbers are read past the end before the check."""

_MAX_SHIFT: Final = 63


class Misplaced(ValueError):
    """The record of a row (counted in one decoded batch) does not match its index, or is malformed."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def refuse(wrong: Flags, message: str) -> None:
    """Raise `Misplaced` for the first row that is wrong."""
    if wrong.any():
        raise Misplaced(int(wrong.argmax()), message)


def read_numbers(octets: Octets, at: Ints) -> tuple[Ints, Ints]:
    """Return the zigzag varints at positions `at`, and the positions after them.

    `at` must be before the padding, or at most `PADDING` - 10 bytes into it. Raises `Misplaced` where
    `keyfold.log.avro.read_varint` raises an error: more than 64 bits, or an empty last byte.
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
