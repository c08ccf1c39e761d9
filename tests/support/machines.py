"""How state machines run. `KEYFOLD_MACHINE_EXAMPLES` and `KEYFOLD_MACHINE_STEPS` say how deep those go that ask."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from keyfold.errors import KeyfoldError


def run_machine(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, phases: Sequence[Phase] = tuple(Phase)
) -> None:
    """So many lives of so many steps each."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            phases=phases,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def as_asked(examples: int, steps: int) -> tuple[int, int]:
    """Lives and steps as the environment says, else these."""
    return (
        int(os.environ.get("KEYFOLD_MACHINE_EXAMPLES", examples)),
        int(os.environ.get("KEYFOLD_MACHINE_STEPS", steps)),
    )


def finds_what_is_wrong(machine: type[RuleBasedStateMachine]) -> None:
    """A specification that never fails says nothing: with a mistake planted it has to fail.

    The search ends with the first life that shows the mistake; a rare one was once not shown by a thousand.
    """
    with pytest.raises((AssertionError, KeyfoldError, ExceptionGroup, pytest.fail.Exception)):
        run_machine(machine, 4_000, 40, (Phase.generate,))
