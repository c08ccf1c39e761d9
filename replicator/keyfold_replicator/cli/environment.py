"""Clock, chance, stores and settings for the commands that replicate."""

from __future__ import annotations

import os
import socket
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of

if TYPE_CHECKING:
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold.store.pacing import Pacer
    from keyfold_replicator.registry.replica_pair import ReplicaSettings
    from keyfold_replicator.rounds.service import ReplicationContext


def context_of(
    ctx: click.Context,
    settings: ReplicaSettings | None = None,
    pacer: Pacer | None = None,
    allowed: AllowedCredentials | None = None,
) -> ReplicationContext:
    """Return clock, chance and stores of this process, with default `settings` and `allowed` if they are None."""
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold_replicator.registry.replica_pair import ReplicaSettings
    from keyfold_replicator.rounds.service import ReplicationContext

    world = world_of(ctx)
    return ReplicationContext(
        settings or ReplicaSettings(),
        world.clock,
        Random(world.random.getrandbits(64)),
        holder=f"{socket.gethostname()}:{os.getpid()}",
        opener=world.open_location,
        pacer=pacer,
        allowed=allowed or AllowedCredentials(),
    )
