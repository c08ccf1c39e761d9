"""A real changelog, and the proof that its latest state is right.

The changelog is a git repository's history: key = path, value = {blob, mode, commit}, or null where the path was
deleted. The latest value of every key is therefore the repository's tree, and git names a tree by the SHA-1 of its
content. Build the tree objects from what the log gives back, bottom up, and the root's name must be the repository's.
Nothing of keyfold takes part in this.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a changelog; `latest_count` counts the keys whose last record is no tombstone."""

    file_name: str
    record_count: int
    key_count: int
    tombstone_count: int
    latest_count: int
    root_tree: str


SMALL: Final = Facts("changelog-small.jsonl.gz", 7_768, 994, 474, 522, "317d112e1706b04f07fb229e27658fb0ee46c038")
LARGE: Final = Facts(
    "changelog-large.jsonl.gz", 98_257, 10_061, 3_624, 6_519, "f2f0a583551309bc30c695a86a7901101f4374dc"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One record of a changelog, as it goes to Kafka. `value` is None for a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


def small_changelog() -> Iterator[Change]:
    """The changelog that comes with the demo."""
    with resources.as_file(resources.files("keyfold_demo") / "data" / SMALL.file_name) as path:
        yield from read_changelog(path)


def read_changelog(path: Path) -> Iterator[Change]:
    """The records of a `changelog-*.jsonl.gz`, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row: dict[str, Any] = json.loads(line)
            value = row["value"]
            yield Change(
                row["key"].encode(),
                None if value is None else json.dumps(value, separators=(",", ":")).encode(),
                int(row["timestamp"]),
            )


def latest_of(changes: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    """The specification of a compacted log: a dict. Deleted keys are left out."""
    latest: dict[bytes, bytes] = {}
    for key, value in changes:
        if value is None:
            latest.pop(key, None)
        else:
            latest[key] = value
    return latest


def root_tree(latest: Mapping[bytes, bytes]) -> str:
    """The SHA-1 (hex) of the git tree that these paths and values make. Raises ValueError where they make none."""
    root: dict[bytes, Any] = {}
    for path, value in latest.items():
        *folders, name = path.split(b"/")
        here = root
        for folder in folders:
            here = here.setdefault(folder, {})
            if not isinstance(here, dict):
                raise ValueError(f"{path!r} lies below something that is a file")  # noqa: TRY004 - the data is wrong, no type
        if name in here:
            raise ValueError(f"{path!r} is both a file and a folder")
        row = json.loads(value)
        here[name] = (str(row["mode"]).lstrip("0").encode(), bytes.fromhex(row["blob"]))
    return _tree_id(root).hex()


def _tree_id(folder: Mapping[bytes, Any]) -> bytes:
    """Git sorts a folder as if its name ended in a slash."""
    entries: list[tuple[bytes, bytes]] = []
    for name, entry in folder.items():
        if isinstance(entry, dict):
            entries.append((name + b"/", b"40000 " + name + b"\0" + _tree_id(entry)))
        else:
            mode, blob = entry
            entries.append((name, mode + b" " + name + b"\0" + blob))
    body = b"".join(line for _, line in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).digest()
