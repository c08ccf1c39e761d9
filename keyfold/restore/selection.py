"""Which records of a log a restore takes. Pure but for the offset of a time, which one index answers.

What is asked for stays as it was said, and is compared when the restore is run again; what it comes to (an end offset a
partition) is decided once, in the first run, and kept in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from keyfold.errors import ConfigError
from keyfold.runtime.json_types import JsonObject

EVERY: Final = -1
"""Stands for all partitions that are not named, in `to_offsets`."""


@dataclass(frozen=True, slots=True)
class RestoreSelection:
    """What was asked for.

    `to_offsets`: partition (or `EVERY`) -> end, exclusive. `to_timestamp`: up to the first record, in offset order,
    that is not before it (ms), exclusive. `max_records`: the first N of each partition. `latest`: the last record
    of each key, deleted keys left out. `skip_keyless`: leave out records without a key.
    """

    to_offsets: Mapping[int, int] = field(default_factory=dict)
    to_timestamp: int | None = None
    max_records: int | None = None
    latest: bool = False
    skip_keyless: bool = False

    def __post_init__(self) -> None:
        asked = [
            name
            for name, value in (
                ("--to-offset", self.to_offsets or None),
                ("--to-timestamp", self.to_timestamp),
                ("--limit", self.max_records),
                ("--latest", self.latest or None),
            )
            if value is not None
        ]
        if len(asked) > 1:
            raise ConfigError(asked[1], f"cannot be combined with {asked[0]}", hint="use one of them")

    @property
    def is_whole(self) -> bool:
        """Whether it goes to the log's end, wherever that is when the end is reached."""
        return not self.to_offsets and self.to_timestamp is None and self.max_records is None

    def to_offset(self, partition: int) -> int | None:
        """The end that was asked for by offset; None where none was."""
        return self.to_offsets.get(partition, self.to_offsets.get(EVERY))

    def to_json(self) -> JsonObject:
        """As it stands in the journal."""
        return {
            "to_offsets": {str(partition): end for partition, end in sorted(self.to_offsets.items())},
            "to_timestamp": self.to_timestamp,
            "max_records": self.max_records,
            "latest": self.latest,
            "skip_keyless": self.skip_keyless,
        }

    def __str__(self) -> str:
        said = "the latest state" if self.latest else "the whole log"
        if self.to_offsets:
            ends = ", ".join(str(e) if p == EVERY else f"{e} of partition {p}" for p, e in self.to_offsets.items())
            said = f"up to offset {ends}"
        elif self.to_timestamp is not None:
            said = f"up to time {self.to_timestamp}"
        elif self.max_records is not None:
            said = f"the first {self.max_records} records of each partition"
        return f"{said}, keyless records left out" if self.skip_keyless else said


def parse_to_offsets(texts: tuple[str, ...]) -> dict[int, int]:
    """`("1500",)` or `("0:1500", "1:900")` as `--to-offset` is given. Raises `ConfigError`."""
    found: dict[int, int] = {}
    for text in texts:
        partition, separator, end = text.rpartition(":")
        if not end.isdecimal() or (separator and not partition.isdecimal()):
            raise ConfigError("--to-offset", f"{text!r} is neither OFFSET nor PARTITION:OFFSET")
        number = int(partition) if separator else EVERY
        if found.setdefault(number, int(end)) != int(end):
            raise ConfigError("--to-offset", f"is given twice for {'all partitions' if number == EVERY else number}")
    return found
