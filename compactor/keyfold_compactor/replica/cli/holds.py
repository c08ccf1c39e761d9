"""Take a replica that is registered no more out of the source's manifests, and say where that could not be done."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import click

from keyfold_compactor.replica.cli.places import world_of

if TYPE_CHECKING:
    from keyfold_compactor.replica.desk.link import Side


def drop_holds(ctx: click.Context, ours: Side, hold_name: str) -> None:
    """See `desk.holds.drop_holds`."""
    from keyfold_compactor.replica.desk import holds

    world = world_of(ctx)
    for message in holds.drop_holds(ours, hold_name, world.clock, Random(world.random.getrandbits(64))):
        click.echo(f"note: an entry is left in a manifest, without effect: {message}", err=True)
