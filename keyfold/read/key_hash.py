"""Hashes of many keys at once. They share keys out over ranges, and never stand for a key: they need only be even."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from keyfold.runtime.arrow_types import ArrowArray, numbers_in

HASHES: Final = 1 << 32
"""Hashes are below this."""

_WORD_BYTES: Final = 8
_LONG_BYTES: Final = 128  # longer keys are hashed one by one, which costs less than as many rounds
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


def key_hashes(keys: ArrowArray) -> npt.NDArray[np.int64]:
    """One hash for each key of a binary array; that of a null is of no use. Equal keys have equal hashes."""
    n = len(keys)
    _, offset_buffer, data = keys.buffers()
    offsets = numbers_in(offset_buffer, np.int32)[keys.offset : keys.offset + n + 1].astype(np.int64)
    starts, sizes = offsets[:-1], np.diff(offsets)
    low = int(offsets[0])
    octets = np.zeros(int(offsets[-1]) - low + _WORD_BYTES, np.uint8)
    if data is not None:
        octets[:-_WORD_BYTES] = numbers_in(data, np.uint8)[low : int(offsets[-1])]
    # A word at every byte: numpy takes those that it is asked for.
    words = np.ndarray((len(octets) - _WORD_BYTES + 1,), np.dtype("<u8"), octets, strides=(1,))
    found = sizes.astype(np.uint64) * _MIX
    short = np.flatnonzero(sizes <= _LONG_BYTES)
    done = 0
    while len(short := short[sizes[short] > done]):
        left = np.minimum(sizes[short] - done, _WORD_BYTES).astype(np.uint64)
        word = words[starts[short] - low + done]
        # The bytes behind a key's end belong to the next one.
        word = word << (np.uint64(64) - left * np.uint64(8))
        mixed = (found[short] ^ word) * _MIX
        found[short] = mixed ^ (mixed >> _HALF)
        done += _WORD_BYTES
    for row in np.flatnonzero(sizes > _LONG_BYTES).tolist():
        at = int(starts[row]) - low
        found[row] = np.uint64(crc32(octets[at : at + int(sizes[row])].tobytes())) << _HALF
    return (found >> _HALF).astype(np.int64)
