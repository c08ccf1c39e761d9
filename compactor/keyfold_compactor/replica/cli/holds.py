"""Take a replica that is registered no more out of the source's manifests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.errors import LogError
from keyfold_compactor.replica.cli.places import world_of

if TYPE_CHECKING:
    from keyfold.log.names import Place
    from keyfold_compactor.replica.desk.link import Side

_AT_ONCE = 16


def drop_holds(ctx: click.Context, ours: Side, hold_name: str) -> None:
    """Drop its entries, where there are any. One that stays has no effect: nobody is registered under that name."""
    from keyfold.log import catalog
    from keyfold.log.partition_log import PartitionLog

    world = world_of(ctx)

    def drop(place: Place) -> str:
        log = PartitionLog(ours.store, place, clock=world.clock, random=Random(world.random.getrandbits(64)))
        try:
            log.drop_hold(hold_name)
        except LogError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="keyfold-holds") as pool:
        for message in pool.map(drop, [*catalog.places(ours.store, ours.topics_dir)]):
            if message:
                click.echo(f"note: an entry is left in a manifest, without effect: {message}", err=True)
