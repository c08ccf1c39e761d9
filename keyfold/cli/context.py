"""What commands get from outside: stores, clock and chance. Tests give their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.runtime.clock import Clock

if TYPE_CHECKING:
    from keyfold.store.api import ObjectStore, StoreLocation
    from keyfold.store.location import OpenLocation
    from keyfold.store.pacing import Pacer

OpenStore = Callable[[str], "tuple[ObjectStore, str]"]
"""URL -> (store, topics.dir)."""


def open_by_url(url: str) -> tuple[ObjectStore, str]:
    """Open the bucket of `s3://bucket/topics.dir` with the usual AWS variables; return it and the topics.dir."""
    from keyfold.store.location import open_store, parse_url

    return open_store(url), parse_url(url)[1]


def open_by_location(location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
    """Open the bucket at a location that a configuration describes."""
    return location.open(pacer)


@dataclass(slots=True)
class CliContext:
    """Stores, clock and chance for commands; `ctx.obj` of every command."""

    open_store: OpenStore
    clock: Clock
    random: Random
    open_location: OpenLocation = open_by_location


def world_of(ctx: click.Context) -> CliContext:
    """Return the context of a command."""
    world = ctx.find_object(CliContext)
    assert world is not None, "`app.run` gives every command one"
    return world
