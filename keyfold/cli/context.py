"""What commands get from outside: stores, clock and chance. Tests give their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from keyfold.runtime.clock import Clock

if TYPE_CHECKING:
    from keyfold.store.api import ObjectStore
    from keyfold.store.pacing import Pacer
    from keyfold.store.s3 import S3Location

OpenStore = Callable[[str], "tuple[ObjectStore, str]"]
"""URL -> (store, topics.dir)."""

OpenAtLocation = Callable[["S3Location", "Pacer | None"], "ObjectStore"]
"""A bucket with its endpoint and credentials, and an optional byte-rate limiter -> store."""


def open_by_url(url: str) -> tuple[ObjectStore, str]:
    """Open the bucket of `s3://bucket/topics.dir` with the usual AWS variables; return it and the topics.dir."""
    from keyfold.store.location import open_store, parse_url

    return open_store(url), parse_url(url)[1]


def open_by_location(location: S3Location, pacer: Pacer | None = None) -> ObjectStore:
    """Open the bucket at a location that a configuration describes."""
    return location.open(pacer)


@dataclass(slots=True)
class CliContext:
    """Stores, clock and chance for commands; `ctx.obj` of every command."""

    open_store: OpenStore
    clock: Clock
    random: Random
    open_location: OpenAtLocation = open_by_location
