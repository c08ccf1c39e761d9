"""What encoding, reading and rewriting cost: CPU time, in one process, with fastavro record by record as the peer.

Run: python tests/bench/bench_codec.py [--quick]. Compare columns, not absolute times: other machines are others.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import TypeVar

import fastavro
import numpy as np
import numpy.typing as npt

from keyfold.log.avro import StoredBlock, read_blocks
from keyfold.log.codec import open_codec
from keyfold.log.index import Index
from keyfold.log.record import TIMESTAMP_TYPES, RecordColumns
from keyfold.log.record_decoder import read_records
from keyfold.log.rewrite import SegmentRewriter
from keyfold.log.segment import DEFAULT_BLOCK_BYTES, SegmentWriter, segment_bytes
from keyfold_schemas import load_schema

SYNC = b"keyfold-bench-16"
T = TypeVar("T")


def cpu(action: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """The least CPU seconds of some runs, and what the last gave."""
    least = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        result = action()
        least = min(least, time.process_time() - begin)
    return least, result


def make_columns(count: int, value_bytes: int, seed: int = 1) -> RecordColumns:
    """Records with text-like values of about `value_bytes`, and keys of 12 bytes."""
    chance = random.Random(seed)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(4000)]
    text = b" ".join(chance.choices(words, k=max(200_000, value_bytes)))

    def value() -> bytes:
        size = max(1, int(value_bytes * chance.uniform(0.9, 1.1)))
        at = chance.randrange(len(text) - size)
        return text[at : at + size]

    return RecordColumns(
        list(range(10**9, 10**9 + count)),
        [1_700_000_000_000 + i // 3 for i in range(count)],
        [1] * count,
        [b"user-%07d" % chance.randrange(10**6) for _ in range(count)],
        [value() for _ in range(count)],
        [None] * count,
        [5] * count,
    )


def part(columns: RecordColumns, start: int, end: int) -> RecordColumns:
    """Some rows of columns."""
    return RecordColumns(
        columns.offsets[start:end],
        columns.timestamps[start:end],
        columns.timestamp_types[start:end],
        columns.keys[start:end],
        columns.values[start:end],
        columns.headers[start:end],
        columns.leader_epochs[start:end],
    )


def split(columns: RecordColumns, batch: int) -> list[RecordColumns]:
    """The columns in batches, as a consumer hands them over."""
    return [part(columns, i, i + batch) for i in range(0, len(columns), batch)]


def write(
    batches: list[RecordColumns], codec: str = "zstandard", block_bytes: int = DEFAULT_BLOCK_BYTES
) -> tuple[bytes, bytes]:
    """A segment and its index."""
    writer = SegmentWriter(sync_marker=SYNC, codec=codec, block_bytes=block_bytes)
    drained: list[bytes] = []
    for some in batches:
        writer.append(some)
        drained += writer.drain()
    finished = writer.finish()
    return segment_bytes(finished, *drained), finished.index_data


def write_with_fastavro(columns: RecordColumns) -> bytes:
    """The same records as a segment without an index, record by record."""
    schema = fastavro.parse_schema(load_schema("record", 1))
    sink = BytesIO()
    rows = (
        {
            "offset": offset,
            "timestamp": timestamp,
            "timestamp_type": TIMESTAMP_TYPES[kind],
            "key": key,
            "value": value,
            "headers": headers or [],
            "leader_epoch": epoch,
        }
        for offset, timestamp, kind, key, value, headers, epoch in zip(
            columns.offsets,
            columns.timestamps,
            columns.timestamp_types,
            columns.keys,
            columns.values,
            columns.headers,
            columns.leader_epochs,
            strict=True,
        )
    )
    fastavro.writer(sink, schema, rows, "zstandard", sync_interval=DEFAULT_BLOCK_BYTES, codec_compression_level=1)
    return sink.getvalue()


def bench_encode(scale: float) -> None:
    print("encode + compress + index, µs CPU a record (by records an append)")
    titles = ("10000", "300", "30", "3", "fastavro", "ratio", "stored B", "index B")
    print(f"{'value bytes':>12}" + "".join(f"{title:>10}" for title in titles))
    for value_bytes, count in ((20, 400_000), (211, 300_000), (1000, 80_000), (100_000, 800)):
        print(_encode_line(make_columns(max(100, int(count * scale)), value_bytes), value_bytes))


def _encode_line(columns: RecordColumns, value_bytes: int) -> str:
    count = len(columns)
    times = [cpu(partial(write, split(columns, batch)))[0] for batch in (10_000, 300, 30, 3)]
    data, index = write(split(columns, 10_000))
    peer, _ = cpu(partial(write_with_fastavro, columns), 1)
    cells = "".join(f"{seconds / count * 1e6:10.3f}" for seconds in (*times, peer))
    return f"{value_bytes:12}{cells}{peer / times[0]:10.1f}{len(data) / count:10.1f}{len(index) / count:10.2f}"


def bench_blocks(scale: float) -> None:
    """Each row's share of what blocks of 64 KiB take: stored bytes, CPU to encode and compress, CPU to decompress."""
    print("\nblock size, of blocks of 64 KiB: stored bytes, CPU to write, CPU to decompress")
    sizes = (64, 128, 256, 512)
    print(f"{'value bytes':>12}" + "".join(f"{f'{kib} KiB':>24}" for kib in sizes))
    for value_bytes, count in ((211, 300_000), (1000, 60_000), (10_000, 6000)):
        columns = make_columns(max(100, int(count * scale)), value_bytes)
        figures = [_block_figures(columns, kib * 1024) for kib in sizes]
        shares = ["".join(f"{n / least:8.2f}" for n, least in zip(row, figures[0], strict=True)) for row in figures]
        print(f"{value_bytes:12}{''.join(shares)}")


def _block_figures(columns: RecordColumns, block_bytes: int) -> tuple[float, float, float]:
    write_s, (data, _) = cpu(partial(write, split(columns, 10_000), block_bytes=block_bytes))
    codec = open_codec("zstandard")
    payloads = [block.payload for block in read_blocks(data) if isinstance(block, StoredBlock)]
    read_s, _ = cpu(lambda: [codec.decompress(payload) for payload in payloads])
    return len(data), write_s, read_s


def bench_read(scale: float) -> None:
    columns = make_columns(int(60_000 * scale), 211)
    data, index_data = write(split(columns, 10_000))
    count = len(columns)
    ours, _ = cpu(lambda: sum(1 for _ in read_records(data)))
    peer, _ = cpu(lambda: sum(1 for _ in fastavro.reader(BytesIO(data))))
    parse, _ = cpu(lambda: Index.parse(index_data))
    print("\nread, µs CPU a record")
    figures = {"read_records": ours, "fastavro": peer, "Index.parse": parse}
    print("  ".join(f"{name} {seconds / count * 1e6:.3f}" for name, seconds in figures.items()))


def rewrite(data: bytes, index_data: bytes, keep: npt.NDArray[np.bool_], codec: str) -> bytes:
    """What a compactor does with one segment: parse its index, move the survivors, write a new index."""
    rewriter = SegmentRewriter(sync_marker=SYNC, codec=codec)
    rewriter.add(Index.parse(index_data), None, keep, None, lambda start, length: data[start : start + length])
    return segment_bytes(rewriter.finish())


def rewrite_with_fastavro(data: bytes, keep: npt.NDArray[np.bool_], codec: str) -> bytes:
    """The same without an index, record by record."""
    sink = BytesIO()
    schema = fastavro.parse_schema(load_schema("record", 1))
    rows = (row for row, kept in zip(fastavro.reader(BytesIO(data)), keep.tolist(), strict=True) if kept)
    fastavro.writer(sink, schema, rows, codec, sync_interval=DEFAULT_BLOCK_BYTES, codec_compression_level=1)
    return sink.getvalue()


def bench_rewrite(scale: float) -> None:
    print("\nrewrite with new index, raw MB per CPU second (in brackets: fastavro record by record)")
    for value_bytes, count in ((1000, 100_000), (211, 300_000)):
        columns = make_columns(int(count * scale), value_bytes)
        for codec in ("zstandard", "null"):
            data, index_data = write(split(columns, 10_000), codec)
            raw_mb = int(Index.parse(index_data).ints("length").sum()) / 1e6
            cells = []
            for garbage in (0.9, 0.1, 0.0):
                keep = np.random.default_rng(1).random(len(columns)) >= garbage
                ours, _ = cpu(partial(rewrite, data, index_data, keep, codec))
                peer, _ = cpu(partial(rewrite_with_fastavro, data, keep, codec), 1)
                cells.append(f"{garbage:.0%} garbage {raw_mb / ours:6.0f} ({raw_mb / peer:.0f})")
            print(f"{value_bytes:6} {codec:>10}  " + "   ".join(cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    chosen = 0.1 if parser.parse_args().quick else 1.0
    bench_encode(chosen)
    bench_blocks(chosen)
    bench_read(chosen)
    bench_rewrite(chosen)
