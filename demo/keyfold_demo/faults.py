"""What a local store does wrong, on request: scripted by counts, or by chance from a seed.

A `Fault` says which requests it is about (a regular expression over `PUT /bucket/key?query`), what answer they get, and
whether the request is carried out all the same:

    Fault(r"^PUT .*_manifest", status=409)                        undecided; nothing was written
    Fault(r"^PUT ", status=503, times=3)                          three times too busy
    Fault(r"^PUT .*_manifest", status=DROP, applied=True)         it landed, the answer was lost
    Fault(r"^PUT .*_manifest", status=DROP, late_ms=500)          the connection breaks; it lands later
    Fault(r"", status=500, applied=True, times=-1, chance=0.05)   now and then an error for what was done
    Fault(r"^PUT ", status=PASS, slow_ms=800, times=-1)           all goes well, but slowly
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

DROP: Final = 0
PASS: Final = 200
CODES: Final = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    403: "AccessDenied",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of misfortune. `status` is an HTTP status with an S3 code in `CODES`; or `DROP`: the connection is cut;
    or `PASS`: nothing is wrong, it is only counted, or slow. `slow_ms` is how long the request is held up first.

    The first `skip` matches pass; then it strikes `times` times (-1: without end), each with probability `chance`.
    """

    match: str
    status: int = DROP
    applied: bool = False
    late_ms: int = 0
    slow_ms: int = 0
    skip: int = 0
    times: int = 1
    chance: float = 1.0

    def __post_init__(self) -> None:
        re.compile(self.match)
        if self.status not in {DROP, PASS, *CODES}:
            raise ValueError(f"status {self.status} is not one of {sorted(CODES)}, DROP or PASS")
        if self.applied and self.late_ms:
            raise ValueError("a request lands now or late, not both")


class FaultPlan:
    """Decides for each request, in the order of arrival; thread-safe. The first fault that strikes wins."""

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self._faults = tuple(faults)
        self._random = Random(seed)
        self._seen = [0] * len(self._faults)
        self._struck = [0] * len(self._faults)
        self._lock = threading.Lock()

    @property
    def struck(self) -> list[int]:
        """How often each fault has struck."""
        with self._lock:
            return list(self._struck)

    def pick(self, request: str) -> Fault | None:
        """The fault for this request (`METHOD /path?query`), if any."""
        with self._lock:
            for place, fault in enumerate(self._faults):
                if not re.search(fault.match, request):
                    continue
                self._seen[place] += 1
                spent = 0 <= fault.times <= self._struck[place]
                if self._seen[place] <= fault.skip or spent or self._random.random() >= fault.chance:
                    continue
                self._struck[place] += 1
                return fault
        return None


def faults_to_json(faults: Iterable[Fault]) -> list[dict[str, Any]]:
    """For the wire."""
    return [asdict(fault) for fault in faults]


def faults_from_json(rows: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Back again. Raises TypeError or ValueError where a row is not a fault."""
    return [Fault(**row) for row in rows]
