"""What is fuzzed: valid objects, how they are changed, what reads them, and which errors that may raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from tests.support.fuzz.mutate import Mutator, any_bytes

KEPT: Final = Path(__file__).parents[2] / "data" / "fuzz"
"""Cases that once showed a defect, in a folder for each target: they are seeds from then on."""


@dataclass(frozen=True)
class Target:
    """One decoder, or several that read the same bytes.

    `made` makes its seeds, by the product's own writers. Each seed is decoded as it is, which must not fail. `decode`
    raises `allowed` and nothing else, whatever the bytes are; an `AssertionError` in it says what else is wrong.
    `reads` are the modules whose lines are counted.
    """

    name: str
    made: Callable[[], Sequence[bytes]]
    decode: Callable[[bytes], object]
    reads: tuple[str, ...]
    mutators: tuple[Mutator, ...] = (any_bytes,)
    allowed: tuple[type[Exception], ...] = (KeyfoldError,)

    @cached_property
    def seeds(self) -> list[bytes]:
        """Valid objects, always in the same order, followed by the stored cases."""
        kept = sorted(path for path in (KEPT / self.name).glob("*") if path.is_file())
        return [*self.made(), *(path.read_bytes() for path in kept)]

    @cached_property
    def made_count(self) -> int:
        """How many of the seeds are valid."""
        return len(self.made())
