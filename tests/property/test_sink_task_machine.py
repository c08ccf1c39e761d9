"""A task with commands, rebalances, rival sinks, refusals and failures in any order and any interleaving.

Each record is in its log once and in order. Nothing is read while the task is paused. A group offset never exceeds the
end of the log. The task's reports are true. When all faults have ended, every record arrives.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from keyfold_sink.task.commands import TaskCommand
from tests.support.machines import as_asked, run_machine
from tests.support.sink_machine import ERRORS, KEYS, TaskMachine
from tests.support.tiers import Sharded

KEY = st.sampled_from(KEYS)


class SinkTaskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = TaskMachine()

    @initialize(count=st.integers(0, 20))
    def begin(self, count: int) -> None:
        for key in KEYS:
            if count:
                self.machine.produce(key, count, 0)
            self.machine.assign(key)
        self.go_on_for_a_while()

    @rule(key=KEY, count=st.integers(1, 12), hole=st.sampled_from([0, 0, 0, 3]))
    def produce(self, key: tuple[str, int], count: int, hole: int) -> None:
        self.machine.produce(key, count, hole)

    @rule(key=KEY)
    def assign(self, key: tuple[str, int]) -> None:
        self.machine.assign(key)

    @rule(key=KEY, lost=st.booleans(), in_time=st.booleans())
    def take_away(self, key: tuple[str, int], lost: bool, in_time: bool) -> None:
        if key in self.machine.owned:
            self.machine.take_away(key, lost=lost, in_time=in_time)
            self.machine.check()

    @rule(times=st.integers(1, 6))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self.machine.turn()
            self.machine.check()

    @rule(choices=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def work(self, choices: list[int]) -> None:
        for choice in choices:
            self.machine.executor.work(choice)
            self.machine.check()

    @rule()
    def go_on_for_a_while(self) -> None:
        """Run several rounds. Without this rule a partition is seldom read."""
        for _ in range(8):
            self.machine.turn()
            self.machine.executor.work()
            self.machine.executor.work()
            self.machine.check()

    @rule(milliseconds=st.sampled_from([10, 200, 1_500, 20_000, 70_000]))
    def wait(self, milliseconds: int) -> None:
        self.machine.clock.advance(milliseconds)

    @rule(command=st.sampled_from([TaskCommand.PAUSE, TaskCommand.RESUME, TaskCommand.FLUSH]))
    def command(self, command: TaskCommand) -> None:
        self.machine.command(command)

    @rule(key=KEY, records=st.integers(0, 9))
    def rival(self, key: tuple[str, int], records: int) -> None:
        self.machine.rival(key, records)

    @rule(key=KEY, code=st.sampled_from(ERRORS))
    def report_error(self, key: tuple[str, int], code: int) -> None:
        self.machine.report_error(key, code)

    @rule(times=st.integers(1, 3))
    def refuse(self, times: int) -> None:
        self.machine.refusals = times

    @rule()
    def check_records(self) -> None:
        self.machine.check_records()

    def teardown(self) -> None:
        self.machine.settle()


def test_a_task_keeps_its_invariants_under_any_sequence_of_events(sharded: Sharded) -> None:
    run_machine(SinkTaskMachine, *as_asked(len(sharded(range(40))), 30), [Phase.explicit, Phase.generate])


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(int(os.environ.get("KEYFOLD_MACHINE_WALKS", "12"))))
def test_every_record_is_in_its_log_once_after_a_long_random_walk(seed: int) -> None:
    machine = TaskMachine()
    machine.walk(Random(seed), steps=150)
    machine.settle()
