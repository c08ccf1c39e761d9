"""A store that misbehaves by the schedule: refuses, drops, delays, and applies requests late.

Each bucket has a gate before the real server (`tests.support.s3_gate`). Its weather is a set of faults
(`keyfold_demo.faults`); what has struck is counted by what the client saw.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from typing import Final

from keyfold_demo.faults import CODES, DROP, PASS, Fault, FaultPlan
from tests.support.s3_gate import HOP_BY_HOP, Gate, _Handler

_MANIFEST: Final = "^PUT .*/_manifest"
_CHANGE: Final = "^(PUT|DELETE) "
FAULTS: Final[dict[str, tuple[Fault, ...]]] = {
    "clear": (),
    "busy": (Fault("", status=503, times=-1, chance=0.3),),
    "failing": (Fault("", status=500, times=-1, chance=0.15), Fault(_MANIFEST, status=409, times=-1, chance=0.2)),
    "lossy": (
        Fault(_CHANGE, status=DROP, applied=True, times=-1, chance=0.1),
        Fault(_MANIFEST, status=500, applied=True, times=-1, chance=0.08),
        Fault("", status=DROP, times=-1, chance=0.05),
    ),
    "late": (
        Fault(_CHANGE, status=DROP, late_ms=400, times=-1, chance=0.08),
        Fault(_CHANGE, status=503, late_ms=1_500, times=-1, chance=0.05),
        Fault(_MANIFEST, status=DROP, late_ms=3_000, times=-1, chance=0.08),
    ),
    "slow": (Fault("", status=PASS, slow_ms=600, times=-1, chance=0.4),),
    "away": (Fault("", status=503, times=-1),),
    "deaf": (Fault("", status=DROP, times=-1),),
}
_LATE_TIMEOUT_S: Final = 60.0


class StormGate(Gate):
    """The gate of one bucket. It keeps no list of requests: a storm makes too many."""

    def __init__(self, upstream_url: str) -> None:
        self._plan = FaultPlan()
        self.struck: Counter[str] = Counter()
        self.requests = 0
        self.is_away = False
        """Set by a drill: every request is refused, whatever the weather is."""
        super().__init__(upstream_url)

    def set_weather(self, what: str, seed: int) -> None:
        """From the next request on, these faults and no others."""
        self._plan = FaultPlan(FAULTS[what], seed)

    def pass_on(self, handler: _Handler, body: bytes) -> None:
        """See `Gate.pass_on`."""
        if self.is_away:
            self._count_struck("refused")
            _refuse(handler, 503)
            return
        fault = self._plan.pick(f"{handler.command} {handler.path}")
        if fault is None:
            super().pass_on(handler, body)
            return
        self._count_struck(kind_of(fault))
        if fault.slow_ms:
            threading.Event().wait(fault.slow_ms / 1000)
        if fault.status == PASS:
            super().pass_on(handler, body)
            return
        if fault.late_ms:
            request = (handler.command, handler.path, dict(handler.headers.items()), body)
            later = threading.Timer(fault.late_ms / 1000, self._apply_late, request)
            later.daemon = True
            later.start()
        elif fault.applied:
            handler.ask(self.upstream, body)
        if fault.status == DROP:
            handler.close_connection = True
        else:
            _refuse(handler, fault.status)

    def _apply_late(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """Carry out a request that its client has given up."""
        connection = http.client.HTTPConnection(self.upstream, timeout=_LATE_TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            status = connection.getresponse().status
            self._count_struck("late, and landed" if status < 300 else "late, and in vain")
        except (OSError, http.client.HTTPException):
            self._count_struck("late, and lost")
        finally:
            connection.close()

    def _note(self, handler: _Handler, number: int, body: bytes, answer_bytes: int, status: int) -> None:
        with self._lock:
            self.requests += 1

    def _count_struck(self, kind: str) -> None:
        with self._lock:
            self.struck[kind] += 1


def kind_of(fault: Fault) -> str:
    """Return what a fault is counted as."""
    if fault.status == PASS:
        return "delayed"
    if fault.late_ms:
        return "applied late"
    if fault.applied:
        return "applied, answer lost" if fault.status == DROP else "applied, answered by an error"
    return "dropped" if fault.status == DROP else "refused"


def _refuse(handler: _Handler, status: int) -> None:
    body = f'<?xml version="1.0"?><Error><Code>{CODES[status]}</Code><Message>weather</Message></Error>'.encode()
    handler.answer(status, [("Content-Type", "application/xml")], body)
