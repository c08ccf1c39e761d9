"""How state machines run. `KEYFOLD_MACHINE_EXAMPLES` and `KEYFOLD_MACHINE_STEPS` say how deep those go that ask.

A machine has to find planted mistakes. The search for one takes up to minutes and belongs to the full run, where
`KEYFOLD_MACHINE_RECORD=1` and `-s` print the life that it found, shortened. `make test` replays such a life.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from keyfold.errors import KeyfoldError

Step = tuple[str, dict[str, Any]]
"""A rule of a machine by its name, and its arguments."""
SHOWN_BY = (AssertionError, KeyfoldError, ExceptionGroup, pytest.fail.Exception)
"""What a machine raises where a promise is broken."""


def run_machine(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, phases: Sequence[Phase] = tuple(Phase)
) -> None:
    """Run a state machine for a number of examples, with at most `steps` steps each."""
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
    with pytest.raises(SHOWN_BY) as found:
        run_machine(machine, 4_000, 40, (Phase.generate,))
    if "KEYFOLD_MACHINE_RECORD" in os.environ:
        life = _life_in(found.value, machine)
        print("", *_shortened(machine, life), "", sep="\n")


def shows(machine: type[RuleBasedStateMachine], mistake: Sequence[tuple[str, Any]], life: Sequence[Step]) -> None:
    """A life that was recorded has to fail with the mistake, and with nothing else."""
    assert _failed_step(machine, life) is None, "this life fails without the mistake"
    with pytest.MonkeyPatch.context() as patch:
        for target, wrong in mistake:
            patch.setattr(target, wrong)
        assert _failed_step(machine, life) is not None, (
            "the machine finds no mistake in this life. If its rules have changed, record another life, as the module "
            "`tests.support.machines` says. If they have not, the machine is blind"
        )


def _life_in(error: BaseException, machine: type[RuleBasedStateMachine]) -> list[Step]:
    """The steps that Hypothesis names in its notes to an error, in the words of the machine's module."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    names: dict[str, Any] = {
        name: value for of in machine.__mro__ for name, value in vars(sys.modules[of.__module__]).items()
    }
    ends = {"teardown", *(invariant.function.__name__ for invariant in machine().invariants)}
    life: list[Step] = []
    for note in error.__notes__:
        call = ast.parse(note, mode="eval").body if note.startswith("state.") else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr not in ends:
            life.append((call.func.attr, _arguments(call, names)))
    return life


def _arguments(call: ast.Call, names: dict[str, Any]) -> dict[str, Any]:
    """The values of a call's keywords: literals, or calls of what has one of these names."""
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            found[str(keyword.arg)] = names[value.func.id](**_arguments(value, names))
        else:
            found[str(keyword.arg)] = ast.literal_eval(value)
    return found


def _failed_step(machine: type[RuleBasedStateMachine], life: Sequence[Step]) -> int | None:
    """Number of the step that fails, and the number of steps where the machine fails at its end."""
    state = machine()
    done = 0
    try:
        try:
            for rule, arguments in life:
                getattr(state, rule)(**arguments)
                for invariant in state.invariants:
                    invariant.function(state)
                done += 1
        finally:
            state.teardown()
    except SHOWN_BY:
        return done
    return None


def _shortened(machine: type[RuleBasedStateMachine], life: list[Step]) -> list[Step]:
    """Those steps without which the life would not fail."""
    length = len(life)
    while length:
        at = 0
        while at < len(life):
            shorter = life[:at] + life[at + length :]
            try:
                failed = _failed_step(machine, shorter)
            except Exception:  # noqa: BLE001 - a step that is impossible without those that were left out
                failed = None
            if failed is None:
                at += length
            else:
                life = shorter[: failed + 1]
        length //= 2
    return life
