"""Directories of keys beside a log: what a lookup makes of them.

Mutations reach behind checksums and compression: footer, chunks and block tables are changed and sealed again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final

import numpy as np
from isal.isal_zlib import crc32

from keyfold.read.log import Log
from keyfold.read.stored_directory import _TAIL, MAGIC, write
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.zstd import zstd
from keyfold.store.api import Create
from tests.support.fuzz.mutate import any_bytes, json_document
from tests.support.fuzz.target import Target
from tests.support.logs import MadeLog, record


@cache
def _log_with_directory() -> tuple[MadeLog, str, bytes]:
    """A log of several blocks and segments, and the key and bytes of its directory of keys."""
    made = MadeLog(block_bytes=200)
    for start in (0, 40, 80):
        made.append([record(start + n, f"k{n % 25}", f"v{start + n}") for n in range(40)])
    retries = RetryPolicy(made.clock, Random(1))
    key = write(made.store, made.place, made.manifest, None, retries=retries, random=Random(1)).key
    return made, key, made.store.get(key).data


def directory_seeds() -> list[bytes]:
    """The directory as it is written."""
    return [_log_with_directory()[2]]


def look_up(data: bytes) -> None:
    """Look keys up with this directory beside the log. It may hide a record, and must not show a wrong one."""
    made, key, _ = _log_with_directory()
    made.store.delete(key)
    made.store.put(key, data, Create())
    log = Log(made.store, made.place.topics_dir, made.place.topic, clock=made.clock, random=Random(1))
    lookup, keys = log.lookup(), [b"k%d" % number for number in range(30)]
    for wanted, found in lookup.get_many(keys).items():
        assert found.record is None or found.record.key == wanted
    for wanted in keys[:3]:
        offsets = [each.offset for _, each in lookup.history(wanted)]
        assert offsets == sorted(set(offsets))


def _opened_directory(data: bytes) -> tuple[bytes, bytes]:
    """Return the parts before the footer, and the footer."""
    length, _, _ = _TAIL.unpack(data[-_TAIL.size :])
    end = len(data) - _TAIL.size
    return data[: end - length], data[end - length : end]


def _closed_directory(body: bytes, footer: bytes) -> bytes:
    return body + footer + _TAIL.pack(len(footer), crc32(footer), MAGIC)


def directory_footer(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the footer, and seal it again."""
    body, footer = _opened_directory(data)
    return _closed_directory(body, json_document(footer, [_opened_directory(each)[1] for each in others], random))


def _change_table(body: bytearray, document: Any, random: Random) -> None:
    """Change a number of a block table, which becomes the last part."""
    segment = random.choice(document["segments"])
    at = segment["position"]
    numbers = np.frombuffer(zstd.decompress(bytes(body[at : at + segment["length"]])), "<i8").copy()
    near = int(numbers[random.randrange(len(numbers))])
    numbers[random.randrange(len(numbers))] = random.choice((0, 1, -1, near, near + 1, -near, 1 << 40, -(1 << 62)))
    table = zstd.compress(numbers.tobytes())
    segment.update(position=len(body), length=len(table))
    body += table


def directory_parts(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change chunks or block tables, and correct all checksums."""
    body, footer = _opened_directory(data)
    document = json.loads(footer)
    first, rest = document["segments"][0]["position"], bytearray(body)
    if random.random() < 0.5:
        rest[random.randrange(len(rest))] = random.randrange(256)
    else:
        _change_table(rest, document, random)
    lengths, _ = np.frombuffer(zstd.decompress(base64.b64decode(document["chunks"])), "<i8").reshape(2, -1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    assert starts[-1] == first
    crcs = [crc32(rest[start:end]) for start, end in pairwise(starts)]
    document["chunks"] = base64.b64encode(zstd.compress(np.array([lengths, crcs], "<i8").tobytes())).decode()
    for segment in document["segments"]:
        table = rest[segment["position"] : segment["position"] + segment["length"]]
        segment["crc"] = crc32(table)
    return _closed_directory(bytes(rest), json.dumps(document).encode())


DIRECTORY_TARGETS: Final = (
    Target("key-directory", directory_seeds, look_up,
           ("keyfold.read.stored_directory", "keyfold.read.key_directory"),
           (any_bytes, directory_footer, directory_parts, directory_parts)),
)  # fmt: skip
