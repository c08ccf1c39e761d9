"""Does a pass cost what it frees, or what the log holds? Stored bytes at the store, segments and indexes apart.

    python -m tests.bench.bench_cost [--records 20000] [--value-bytes 1000] [--garbage 0.1,0.3,0.5,0.9] [--tails 1,10]

First the same dirty head above clean tails of several lengths: segments' bytes must not grow with the tail, only the
indexes are read of all. Then logs with so much garbage: with garbage g, reading everything and writing what stays moves
(2 - g) / g bytes for each that is freed; a pass must stay within 1.2 of that, indexes included. Values that are short
make indexes large beside their segments: try `--value-bytes 100`. Bytes are exact, so the exit code is 1 where a figure
is above its bound. tests/unit/compactor/report/test_cost.py holds the same over small logs.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.costs import CostLog, Moved, bound, even, in_turn

WORST: Final = 1.2
TAIL_GROWS: Final = 1.01
SEGMENTS: Final = 5
FIRST_HEAD_KEY: Final = 10**9
WAYS: Final = {"evenly": even, "in turn": in_turn}


def settings(records: int, value_bytes: int) -> TopicSettings:
    """A segment of a fifth of these records is full: two of them do not fit into one."""
    return TopicSettings(min_cleanable_dirty_ratio=0.0, segment_bytes=records // SEGMENTS * value_bytes * 6 // 10)


def head(records: int, value_bytes: int, tail: int) -> tuple[Moved, int]:
    """The pass over a dirty head above a clean tail `tail` times as long; and the bytes of the log before."""
    log = CostLog(MemoryStore(), records // SEGMENTS, value_bytes)
    for _ in range(tail):
        start = log.manifest.next_offset if log.is_there else 0
        log.append(range(start, start + records))
        log.clean(settings(records, value_bytes))
    log.append(even(records, 0.5, first_key=FIRST_HEAD_KEY))
    size_bytes = log.manifest.size_bytes
    return log.clean(settings(records, value_bytes))[0], size_bytes


def tails(records: int, value_bytes: int, lengths: list[int]) -> bool:
    """Print what the same head costs above each tail; whether the cost stays."""
    fits, first = True, 0
    for length in lengths:
        moved, size_bytes = head(records, value_bytes, length)
        first = first or moved.data
        good = moved.data <= TAIL_GROWS * first
        fits &= good
        print(
            f"tail {length:>3} times the head, {_mb(size_bytes):>6} MB: segments {_mb(moved.data_read)} MB read, "
            f"{_mb(moved.data_written)} MB written, {moved.data / first:.3f} times the first's; indexes "
            f"{_mb(moved.index_read)} MB read, {_mb(moved.index_written)} MB written; {moved.requests} requests"
            f"{'' if good else '   GROWS'}",
            flush=True,
        )
    return fits


def ratios(records: int, value_bytes: int, shares: list[float]) -> bool:
    """Print bytes moved for each byte freed; whether all stay within `WORST` of the bound."""
    fits = True
    for way, keys in WAYS.items():
        for garbage in shares:
            log = CostLog(MemoryStore(), records // SEGMENTS, value_bytes)
            log.append(keys(records, garbage))
            moved, _ = log.clean(settings(records, value_bytes))
            most = bound(garbage)
            good = max(moved.ratio, moved.data_ratio) <= WORST * most
            fits &= good
            print(
                f"garbage {garbage:.0%} {way:<8} {moved.data_ratio:6.2f} bytes moved a byte freed, "
                f"{moved.ratio:6.2f} with indexes; (2 - g) / g = {most:5.2f}: {moved.data_ratio / most:.2f}, "
                f"{moved.ratio / most:.2f} of it{'' if good else '   ABOVE'}",
                flush=True,
            )
    return fits


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.2f}"


@click.command()
@click.option("--records", default=20_000, help="Of the head, and of each log with garbage.")
@click.option("--value-bytes", default=1_000)
@click.option("--garbage", default="0.1,0.3,0.5,0.9")
@click.option("--tails", "lengths", default="1,10", help="Lengths of clean tails, in heads.")
def main(records: int, value_bytes: int, garbage: str, lengths: str) -> None:
    """Print bytes and ratios."""
    fits = tails(records, value_bytes, [int(text) for text in lengths.split(",")])
    fits &= ratios(records, value_bytes, [float(text) for text in garbage.split(",")])
    sys.exit(0 if fits else 1)


if __name__ == "__main__":
    main()
