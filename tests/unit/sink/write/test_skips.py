"""The skipped offsets of a commit, and the dead letters that the commit waits for."""

from __future__ import annotations

from dataclasses import dataclass

from keyfold.log.manifest import Gap
from keyfold_sink.write.skips import Skips


@dataclass(frozen=True)
class FakeBatch:
    """A batch of dead letters for the records between two offsets."""

    first_offset: int
    last_offset: int

    def wait(self) -> None:
        raise AssertionError("nobody waits here")


def test_each_commit_within_a_batch_waits_for_the_batchs_dead_letters() -> None:
    skips, batch, later = Skips(), FakeBatch(3, 8), FakeBatch(20, 20)
    first, second = Gap(3, 4, "skipped: x"), Gap(8, 9, "skipped: x")
    skips.add((first, second), batch)
    skips.add((), later)
    assert skips.take_until(3) == ((), ())
    assert skips.take_until(4) == ((first,), (batch,))
    assert skips.take_until(9) == ((second,), (batch,))
    assert skips.take_until(20) == ((), ())
    assert skips.take_until(21) == ((), (later,))
