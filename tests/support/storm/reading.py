"""A process of readers: each turn reads one partition in one bucket and judges what it saw by Kafka's own records.

    python -m tests.support.storm.plain CONFIG.json

It reads until SIGTERM. Then nothing is written any more: each reader reads each partition of each bucket once more, up
to Kafka's end. The last line of the output is a JSON object with the figures. A flaw ends the process with exit code 1.

Nothing of keyfold is imported here.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from tests.support.storm.judge import Rules, Version, backwards, row_flaws, snapshot_flaws, state_flaws
from tests.support.storm.truth import History, Row, Truth

FLAWS_SHOWN_MAX: Final = 5
LAST_TRIES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """One partition in one bucket."""

    bucket: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} in {self.bucket}"


class Overtaken(Exception):
    """The objects were deleted meanwhile, or the reader was refused for missing records. It starts again."""


class NoAnswer(Exception):
    """The store gave no answer."""


class Absent(Exception):
    """There is no such log. From a reader that has read it before, that is a flaw."""


class Flaw(AssertionError):
    """Something was read that must not be."""


@dataclass(slots=True)
class ReadJudge:
    """What all readers of a process share: configuration, truth, figures."""

    config: Mapping[str, Any]
    truth: Truth
    counts: Counter[str] = field(default_factory=Counter)
    lag_ms: dict[str, int] = field(default_factory=dict)
    _newest: dict[tuple[str, Spot], Version] = field(default_factory=dict)

    def rules(self, topic: str) -> Rules:
        """Return what is configured for a topic."""
        found = self.config["topics"][topic]
        return Rules(found["is_compacted"], found["expires"], self.config["delete_retention_ms"])

    def judge_snapshot(self, reader: str, spot: Spot, version: Version, rows: Sequence[Row]) -> None:
        """Accept all records of a version, or raise `Flaw`."""
        history = self._begin(reader, spot, version)
        flaws = row_flaws(spot.topic, spot.partition, rows)
        flaws = flaws or snapshot_flaws(history, version, self.rules(spot.topic), rows)
        self._end(reader, spot, version, flaws, len(rows))

    def judge_state(self, reader: str, spot: Spot, version: Version, state: Mapping[bytes, Row]) -> None:
        """Accept the latest state of a version, or raise `Flaw`."""
        history = self._begin(reader, spot, version)
        flaws = state_flaws(history, version.start, version.end, state)
        self._end(reader, spot, version, flaws, len(state))

    def has_read(self, reader: str, spot: Spot) -> bool:
        """Return whether a reader has read a partition before."""
        return (reader, spot) in self._newest

    def _begin(self, reader: str, spot: Spot, version: Version) -> History:
        before = self._newest.get((reader, spot))
        gone_back = backwards(before, version) if before is not None else ""
        if gone_back:
            raise Flaw(f"{reader} went backwards at {spot}: {gone_back}\nbefore {before}\nafter {version}")
        self._newest[reader, spot] = version
        return self.truth.wait((spot.topic, spot.partition), version.end)

    def _end(self, reader: str, spot: Spot, version: Version, flaws: Sequence[str], count: int) -> None:
        if flaws:
            shown = "\n  ".join(flaws[:FLAWS_SHOWN_MAX])
            raise Flaw(f"{reader} saw {len(flaws)} flaws at {spot}, {version}:\n  {shown}")
        self.counts[f"accepted by {reader}"] += 1
        self.counts[f"accepted in {spot.bucket}"] += 1
        self.counts["records read"] += count
        later = self.truth.wait((spot.topic, spot.partition), 0).between(version.end, 2**63)
        lag_ms = version.read_at_ms - later[0].timestamp if later else 0
        self.lag_ms[spot.bucket] = max(self.lag_ms.get(spot.bucket, 0), lag_ms)

    def check_reached(self, reader: str, spot: Spot) -> None:
        """Raise `Flaw` unless the version that was read last has all that Kafka has."""
        left = self.truth.wait((spot.topic, spot.partition), 0).between(self._newest[reader, spot].end, 2**63)
        if left:
            raise Flaw(f"{reader} at {spot} ends before {len(left)} records, from offset {left[0].offset} on")


class SpotReader(Protocol):
    """Reads one partition a turn."""

    name: str

    def turn(self, spot: Spot) -> None:
        """Read and judge. Raise `Flaw` where it is wrong; `Overtaken`, `Absent`, `NoAnswer` where nothing was read."""


def run(make: Callable[[ReadJudge, Random], Sequence[SpotReader]]) -> None:
    """Run the readers of this process, as the configuration in the first argument says."""
    config = json.loads(Path(sys.argv[1]).read_text())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    random = Random(config["seed"])
    spots = [
        Spot(bucket, topic, partition)
        for bucket in config["buckets"]
        for topic, found in config["topics"].items()
        for partition in range(found["partitions"])
    ]
    with ExitStack() as exits:
        truth = exits.enter_context(Truth(config["bootstrap_servers"], {(s.topic, s.partition) for s in spots}))
        judge = ReadJudge(config, truth)
        readers = make(judge, random)
        while not stop.is_set():
            begun_s = time.monotonic()
            _turn(judge, random.choice(readers), random.choice(spots))
            stop.wait(max(0.1, config["rest"] * (time.monotonic() - begun_s)))
        print("the last turns begin", flush=True)
        for reader in readers:
            for spot in spots:
                _last(judge, reader, spot)
    print(json.dumps({"counts": judge.counts, "lag_ms": judge.lag_ms}), flush=True)


def _turn(judge: ReadJudge, reader: SpotReader, spot: Spot) -> bool:
    try:
        reader.turn(spot)
    except Overtaken as error:
        judge.counts[f"overtaken: {reader.name}"] += 1
        print(f"{reader.name} was overtaken at {spot}: {error}", flush=True)
    except Absent as error:
        if judge.has_read(reader.name, spot):
            raise Flaw(f"{reader.name} has read {spot} before, and now there is no log: {error}") from error
        judge.counts[f"not there yet: {reader.name}"] += 1
    except NoAnswer as error:
        judge.counts[f"no answer: {reader.name}"] += 1
        print(f"{reader.name} had no answer at {spot}: {error}", flush=True)
    else:
        return True
    return False


def _last(judge: ReadJudge, reader: SpotReader, spot: Spot) -> None:
    for _ in range(LAST_TRIES_MAX):
        if _turn(judge, reader, spot):
            judge.check_reached(reader.name, spot)
            return
    raise Flaw(f"{reader.name} could not read {spot} in {LAST_TRIES_MAX} tries, and nothing is written any more")
