"""Remove a replica that is no longer registered from the source's manifests, and report where that failed."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of
from keyfold.errors import KeyfoldError
from keyfold.runtime.terminal import echo
from keyfold.runtime.text import count_text

if TYPE_CHECKING:
    from keyfold_replicator.registry.replica_pair import LogDirectory


def drop_holds(ctx: click.Context, ours: LogDirectory, hold_name: str) -> None:
    """See `registry.holds.drop_holds`. A failure is only a note, because the caller's change is already made."""
    from keyfold_replicator.registry import holds

    world = world_of(ctx)
    try:
        left = holds.drop_holds(ours, hold_name, world.clock, Random(world.random.getrandbits(64)))
    except KeyfoldError as error:
        echo(
            f"note: entries of `{hold_name}` may be left in the source's manifests, which could not be listed. They "
            f"have no effect, and you do not need to do anything: {error}",
            err=True,
        )
        return
    for message, count in Counter(left).items():
        where = count_text(count, "manifest")
        echo(f"note: an entry is left in {where} and has no effect: {message}", err=True)
