"""A window: which source offsets land in the target, in order, from which target offset on. Pure.

Windows of a partition are numbered, and a later one goes before earlier ones from its `base` on: what an earlier one
announced there never landed. So the windows of all runs, one after another, say of every target offset which source
offset is in it.

    line of JSON       format, number, base, position, next_position, count, run, finished, anchor, crc32
    rest               zstandard of the source offsets as differences, little-endian int64
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from keyfold.log.codec import DecompressionFailed, open_codec
from keyfold.log.index import Ints
from keyfold.read.position import Anchor
from keyfold.runtime.buffers import Bytes
from keyfold.store.documents import decode_document

FORMAT: Final = 1
MAX_COUNT: Final = 4_000_000
"""Offsets that a window may have: more than a restore announces at a time."""
NO_OFFSETS: Final[Ints] = np.empty(0, np.int64)


class WindowDamaged(ValueError):
    """Bytes that are no window."""


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """`offsets` (source, ascending) land at `base`, `base + 1`, ... of the target.

    Reading was at `position` of the source before the window, and is at `next_position` after it. `finished` says that
    the restore of this partition ends here. `run` is the epoch of the run that wrote it, and `anchor` what it knew of
    the log: what is missing between `offsets` may have been compacted away because of a record that was never read, up
    to `anchor.seen_to`. A run that goes on must know that (`keyfold.read.position`).
    """

    number: int
    base: int
    position: int
    next_position: int
    offsets: Ints
    run: int = 0
    finished: bool = False
    anchor: Anchor | None = None

    @property
    def end(self) -> int:
        """The target offset after its last record, if all of them land."""
        return self.base + len(self.offsets)

    def position_after(self, landed: int) -> int:
        """Where the source is read on when the first `landed` records are in the target."""
        if landed == len(self.offsets):
            return self.next_position
        return self.position if landed == 0 else int(self.offsets[landed - 1]) + 1

    def encode(self) -> bytes:
        """The stored object."""
        payload = open_codec("zstandard").compress(np.diff(self.offsets, prepend=0).astype("<i8").tobytes())
        header = {
            "format": FORMAT,
            "number": self.number,
            "base": self.base,
            "position": self.position,
            "next_position": self.next_position,
            "count": len(self.offsets),
            "run": self.run,
            "finished": self.finished,
            "anchor": None if self.anchor is None else asdict(self.anchor),
            "crc32": crc32(payload),
        }
        return json.dumps(header).encode() + b"\n" + payload

    @staticmethod
    def decode(data: bytes) -> Window:
        """Read `encode`'s bytes. Raises `WindowDamaged`."""
        line, _, payload = data.partition(b"\n")
        try:
            header = decode_document(_Header, line)
            if header.format != FORMAT or crc32(payload) != header.crc32:
                raise WindowDamaged("its checksum or format is wrong")
            offsets = np.cumsum(np.frombuffer(_unpacked(payload, header.count), "<i8").astype(np.int64))
            if len(offsets) != header.count:
                raise WindowDamaged(f"has {len(offsets)} offsets, but declares {header.count}")
            return Window(
                header.number, header.base, header.position, header.next_position, offsets,
                header.run, header.finished, header.anchor,
            )  # fmt: skip
        except (ValueError, DecompressionFailed) as error:
            raise WindowDamaged(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Header:
    """The line of JSON."""

    format: int
    number: int
    base: int
    position: int
    next_position: int
    count: int
    run: int
    finished: bool
    crc32: int
    anchor: Anchor | None = None


def _unpacked(payload: bytes, count: int) -> Bytes:
    """Return the offsets' bytes. Raise `WindowDamaged` before more is unpacked than this number of offsets takes."""
    if not 0 <= count <= MAX_COUNT:
        raise WindowDamaged(f"declares {count} offsets")
    return open_codec("zstandard").decompress(payload, count * 8)


def in_force(descending: Iterable[Window]) -> Iterator[Window]:
    """What is left of a partition's windows when later ones have gone before earlier ones, the last one first.

    `descending` are the windows by falling number; as many of them are read as are asked for.
    """
    cut: int | None = None
    for window in descending:
        if cut is None:
            yield window
        elif window.base < cut:
            kept = cut - window.base
            if kept >= len(window.offsets):
                yield window
            else:
                yield replace(window, offsets=window.offsets[:kept], next_position=window.position_after(kept))
        else:
            continue
        cut = window.base
