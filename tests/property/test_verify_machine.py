"""Verification after each step of a log's life: whatever state the log is in, nothing is wrong with it.

The steps are those of `tests/property/test_log_machine.py`: appends, holes, passes in parts, purges, retention, crashes
and late requests. What verification concludes from replaced objects is held against all of them.
"""

from __future__ import annotations

import contextlib
from random import Random

from hypothesis import Phase
from hypothesis.stateful import invariant

from keyfold.errors import LogNotFound
from keyfold.verify.partition import verify_partition
from tests.property.test_log_machine import LogMachine
from tests.support.cleaning import PLACE
from tests.support.machines import as_asked, run_machine
from tests.support.tiers import Sharded


class VerifiedMachine(LogMachine):
    """A log that is verified after each step, with as little memory as can be."""

    @invariant()
    def nothing_is_damaged(self) -> None:
        with contextlib.suppress(LogNotFound):
            report = verify_partition(self.store, PLACE, clock=self.clock, random=Random(0), rows_at_once=7)
            assert report.is_sound, [str(f) for f in report.damage]


def test_a_log_is_sound_after_each_step(sharded: Sharded) -> None:
    run_machine(VerifiedMachine, *as_asked(len(sharded(range(15))), 20), [Phase.explicit, Phase.generate])
