"""Planted bugs, and the proof that the tests notice each of them.

    mutant            one plausible mistake, as a text file in `tests/mutants`
    tree              a copy of the source tree with a virtual environment of its own, in which a mutant is planted
    recording         which tests run which lines, recorded once by coverage
    record_plugin     what pytest does for that
    coverage_table    how many lines and branches of each package the tests run, from a recording
    import_distance   which tests are near a module, where nothing was recorded
    choice            the tests to run for a mutant, in stages, the cheapest first
    trial             one mutant: stage after stage until a test fails
    trial_plugin      what pytest does for that
    table             what came of all of them

`make mutants` runs all; `make mutants ARGS="--only log/append-without-fence"` runs one.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
"""The source tree."""
