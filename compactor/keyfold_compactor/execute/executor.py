"""The executor of a batch, as the passes use it: on Spark (`keyfold_compactor.spark.executor`) or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob

Done = Callable[[int], None]
"""Called with the number of further finished logs or units, from any thread, but by one at a time."""


class Executor(Protocol):
    """Run the two steps of a batch. `slots` is how many tasks run at once."""

    @property
    def slots(self) -> int:
        """Number of tasks that run at once."""

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        """Map every log; return answers in any order. A log that fails says so in its answer.

        Units of jobs with `single_stage` may be done in the same task.
        """

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        """Do all units, one task per portion; return answers in any order. A batch calls this for each of its parts."""

    def forget(self) -> None:
        """Drop the masks after the end of a batch."""


ExecutorFactory = Callable[[int], Executor]
"""Returns the executor of a run, given the work that is due in it (`decide.batching.work_bytes`)."""
