"""Which action happens at which moment of a storm: a pure function of the seed.

    plan(seed, seconds)     the steps in order of time; the same seed gives the same steps

Processes are killed, terminated and frozen, each by a sequence of its own, and started or woken some seconds later. The
store of each bucket has weather of its own. Drills are begun one after the other and take as long as they take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

BUCKETS: Final = ("one", "two", "three")
SINKS: Final = ("sink 0", "sink 1")
REPLICATORS: Final = ("replicator 0", "replicator 1")
COMPACTOR: Final = "compactor"
BROKER: Final = "broker"
SESSION_S: Final = 6.0
"""After this long a frozen sink loses its partitions to the other one."""

DRILLS: Final = ("resync", "switch over", "fail over")
TRAFFIC: Final = ("usual", "hot keys", "many keys", "deletions", "large values", "without keys")
WEATHER: Final = {
    "busy": (3, (2.0, 6.0)),
    "failing": (2, (2.0, 6.0)),
    "lossy": (4, (3.0, 10.0)),
    "late": (3, (3.0, 8.0)),
    "slow": (2, (2.0, 6.0)),
    "away": (1, (1.0, 5.0)),
    "deaf": (1, (1.0, 4.0)),
}
"""How likely, and how long."""

_Disturbances = dict[str, tuple[int, tuple[float, float], str]]
_PROCESS: Final[_Disturbances] = {
    "kill": (4, (0.0, 4.0), "start"),
    "terminate": (3, (0.5, 5.0), "start"),
    "freeze": (3, (1.0, 8.0), "wake"),
}
_SINK: Final[_Disturbances] = {
    **_PROCESS,
    "kill tasks": (2, (1.0, 2.0), "wake"),
    "freeze": (3, (SESSION_S + 1, SESSION_S + 6), "wake"),
}
_BROKER: Final[_Disturbances] = {"freeze": (1, (1.0, 8.0), "wake")}
_DRILL_EVERY_S: Final = 75.0
_DRILL_FIRST_S: Final = 12.0


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One action, `at_s` seconds after the storm began. `whom` is a process, a bucket, or empty."""

    at_s: float
    what: str
    whom: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:8.2f} s  {self.what} {self.whom}".rstrip()


def plan(seed: int, seconds: float) -> tuple[Step, ...]:
    """Return the schedule of a seed. Each part draws from a source of chance of its own."""
    steps: list[Step] = []
    for whom in SINKS:
        steps += _disturbances(Random(f"{seed} {whom}"), whom, _SINK, seconds, rest_s=(12, 35))
    for whom in (COMPACTOR, *REPLICATORS):
        steps += _disturbances(Random(f"{seed} {whom}"), whom, _PROCESS, seconds, rest_s=(12, 40))
    steps += _disturbances(Random(f"{seed} broker"), BROKER, _BROKER, seconds, rest_s=(20, 60))
    for bucket in BUCKETS:
        steps += _weather(Random(f"{seed} weather {bucket}"), bucket, seconds)
    steps += _traffic(Random(f"{seed} traffic"), seconds)
    steps += _drills(Random(f"{seed} drills"), seconds)
    return tuple(sorted(steps))


def _disturbances(
    random: Random, whom: str, kinds: _Disturbances, seconds: float, *, rest_s: tuple[float, float]
) -> Iterator[Step]:
    at = random.uniform(2, rest_s[0])
    while at < seconds:
        what = random.choices(list(kinds), [weight for weight, _, _ in kinds.values()])[0]
        _, lasts_s, end = kinds[what]
        over = at + random.uniform(*lasts_s)
        yield Step(at, what, whom)
        yield Step(over, end, whom)
        at = over + random.uniform(*rest_s)


def _weather(random: Random, bucket: str, seconds: float) -> Iterator[Step]:
    at = random.uniform(1, 8)
    while at < seconds:
        what = random.choices(list(WEATHER), [weight for weight, _ in WEATHER.values()])[0]
        yield Step(at, what, bucket)
        at += random.uniform(*WEATHER[what][1])
        yield Step(at, "clear", bucket)
        at += random.uniform(4, 15)


def _traffic(random: Random, seconds: float) -> Iterator[Step]:
    at = 0.0
    kinds = _rounds(random, TRAFFIC)
    while at < seconds:
        yield Step(at, "traffic", next(kinds))
        at += random.uniform(4, 15)


def _drills(random: Random, seconds: float) -> Iterator[Step]:
    at = _DRILL_FIRST_S
    kinds = _rounds(random, DRILLS)
    while at < seconds - _DRILL_FIRST_S:
        yield Step(at, "drill", next(kinds))
        at += _DRILL_EVERY_S


def _rounds(random: Random, kinds: Sequence[str]) -> Iterator[str]:
    """All kinds in an order of chance, then all of them again in another one."""
    while True:
        yield from random.sample(kinds, len(kinds))
