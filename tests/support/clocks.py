"""Wrong clocks: the time of day jumps, and monotonic time continues.

    true = ManualClock()                       what really passes
    SkewedClock(true)                          a machine, or a store, that shows another time of day
    clock.jump(-HOUR_MS)                       from now on it shows an hour less than it did
    JumpingStore(store, [clock], at=7, by_ms=...)  clocks jump right before the store's 7th call
    SkewedProcesses(folder).environment        real processes, whose time of day a test moves while they run
    ServerTime().jump(-3600)                   what an S3 server says of its time, for `tests.support.s3_gate`
    HurriedClock(10)                           time passes ten times as fast, for waits whose length is not tested

A `SkewedClock` never moves its monotonic time by a jump, as no kernel does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Final

from keyfold.runtime.clock import Clock, ManualClock, SystemClock
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.faults import Call, Fault, FaultyStore

HOUR_MS: Final = 3_600_000
BOTH_WAYS: Final = (HOUR_MS, -HOUR_MS)


@dataclass(frozen=True, slots=True)
class HurriedClock:
    """A clock of the system whose monotonic time passes `times` as fast."""

    times: float

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return SystemClock().now_ms()

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return SystemClock().monotonic_s() * self.times

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        SystemClock().sleep(seconds / self.times)


@dataclass(slots=True)
class SkewedClock:
    """`base` with another time of day. `highest_ms` and `lowest_ms` are the furthest that it was ever off.

    `cut_ms` is the most by which it has ever come forward, from whatever it showed before: a wait that was measured
    with it may have been shorter than was promised by as much, and by no more.
    """

    base: Clock
    offset_ms: int = 0
    highest_ms: int = 0
    lowest_ms: int = 0
    cut_ms: int = 0

    @staticmethod
    def manual() -> SkewedClock:
        """One over a time that only a test moves."""
        return SkewedClock(ManualClock())

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self.base.now_ms() + self.offset_ms

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self.base.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self.base.sleep(seconds)

    def jump(self, by_ms: int) -> None:
        """Show `by_ms` more from now on, or less."""
        self.offset_ms += by_ms
        self.highest_ms = max(self.highest_ms, self.offset_ms)
        self.lowest_ms = min(self.lowest_ms, self.offset_ms)
        self.cut_ms = max(self.cut_ms, self.offset_ms - self.lowest_ms)


class JumpingStore(FaultyStore):
    """A connection to a store whose clocks jump right before the call with the number `at`."""

    def __init__(
        self, inner: ObjectStore, clocks: Iterable[SkewedClock], *, at: int, by_ms: int, faults: Iterable[Fault] = ()
    ) -> None:
        super().__init__(inner, faults, on_call=self._strike)
        self._clocks = tuple(clocks)
        self._at = at
        self._by_ms = by_ms
        self.has_jumped = False

    def _strike(self, call: Call) -> None:
        if call.number >= self._at and not self.has_jumped:
            self.has_jumped = True
            for clock in self._clocks:
                clock.jump(self._by_ms)


@dataclass(slots=True)
class SkewedProcesses:
    """Processes that are started with this environment share a time of day, which `jump` moves for all of them.

    Their monotonic clocks, librdkafka and the signatures of requests are left alone. A signature that is an hour off
    is refused by every real S3 (`RequestTimeTooSkewed`), so a process with such a clock would not come so far.
    """

    folder: Path
    offset_s: int = 0

    def __post_init__(self) -> None:
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """For the child process; it passes it on to its own children."""
        paths = [str(Path(__file__).parent / "skewed"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "KEYFOLD_TEST_CLOCK": str(self._file)}

    def jump(self, by_s: int) -> None:
        """Move their time of day, at once."""
        self.offset_s += by_s
        self._write()

    @property
    def _file(self) -> Path:
        return self.folder / "clock"

    def _write(self) -> None:
        written = self.folder / "clock.new"
        written.write_text(str(self.offset_s))
        written.replace(self._file)


_DATES: Final = {"date", "last-modified"}
_ISO: Final = re.compile(rb"<(LastModified|Initiated)>([^<]+)</")


@dataclass(slots=True)
class ServerTime:
    """What a server with a clock of its own says of times: each by how the clock stood at that time."""

    jumps: list[tuple[float, int]] = field(default_factory=list)

    def jump(self, by_s: int) -> None:
        """The clock jumps now."""
        now_s, offset_s = time.time(), self.jumps[-1][1] if self.jumps else 0
        self.jumps.append((now_s, offset_s + by_s))

    def shown(self, moment: datetime) -> datetime:
        """What the server's clock showed then."""
        at_s = moment.timestamp()
        offset_s = next((offset_s for since_s, offset_s in reversed(self.jumps) if since_s <= at_s), 0)
        return moment + timedelta(seconds=offset_s)

    def headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """An answer's headers as this server sends them."""
        return [
            (name, format_datetime(self.shown(parsedate_to_datetime(value)), usegmt=True))
            if self.jumps and name.lower() in _DATES
            else (name, value)
            for name, value in headers
        ]

    def body(self, data: bytes) -> bytes:
        """An answer's body as this server sends it: the times of a listing."""
        if not self.jumps or not data.startswith(b"<?xml"):
            return data
        return _ISO.sub(self._iso, data)

    def _iso(self, found: re.Match[bytes]) -> bytes:
        moment = datetime.fromisoformat(found[2].decode()).astimezone(UTC)
        text = self.shown(moment).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return b"<%s>%s</" % (found[1], text.encode())
