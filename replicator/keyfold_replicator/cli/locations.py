"""The arguments of commands: a bucket by URL or by configuration file, a replica by its source and name.

SOURCE           s3://bucket/topics.dir, opened with the usual AWS variables, or a configuration file such as that of
                 the compactor or the sink. Its keys about the store have endpoint, region and credentials; its keys
                 about registrations say which credentials of this machine a registration may name
PLACE [NAME]     with NAME, the replica of that name which is registered at PLACE; without NAME, PLACE is the replica
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of
from keyfold.errors import ConfigError

if TYPE_CHECKING:
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold.config.options import StoreOptions
    from keyfold.replicas.documents import Registration
    from keyfold.replicas.registry import EnablementStore, ReplicaRegistry
    from keyfold.store.api import ObjectStore, StoreLocation
    from keyfold.store.pacing import Pacer
    from keyfold_replicator.registry.replica_pair import LogDirectory

CONNECTIONS = 40


class PlaceType(click.ParamType[str]):
    """A URL, or a configuration file."""

    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the place and return it as it was given. A file is read only when the command runs."""
        from keyfold.store.location import parse_url

        text = str(value)
        if "://" not in text:
            if not Path(text).is_file():
                self.fail(f"{text!r} is neither s3://<bucket>/<topics.dir> nor an existing file", param, ctx)
            return text
        try:
            parse_url(text)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        return text


source_argument = click.argument("source", metavar="SOURCE", type=PlaceType())
name_argument = click.argument("name", metavar="NAME")


def where(place: str) -> tuple[StoreLocation, str]:
    """Return the location that a URL or a configuration file names, and the topics.dir. Raise `ConfigError`."""
    from keyfold.config.options import StoreOptions, read_config
    from keyfold.store.location import configured_location, location_of, parse_url

    if "://" in place:
        return location_of(place).adjusted(max_connections=CONNECTIONS), parse_url(place)[1]
    options = StoreOptions.parse(_known_to(StoreOptions, read_config(place)))
    return configured_location(options, max_connections=CONNECTIONS), options.topics_dir


def allowed_credentials(place: str) -> AllowedCredentials:
    """Return the credentials of this machine that registrations may name: as the file says, or the defaults."""
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold.config.options import read_config
    from keyfold.config.process_options import RegistrationOptions

    if "://" in place:
        return AllowedCredentials()
    return RegistrationOptions.parse(_known_to(RegistrationOptions, read_config(place))).allowed_credentials


def _known_to(model: type[StoreOptions], values: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a service's configuration whose keys `model` knows."""
    from keyfold.config.option_fields import entries

    known = {entry.key for entry in entries(model)}
    return {key: value for key, value in values.items() if key in known}


def open_store(ctx: click.Context, location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
    """Open a store, to be closed when the command ends."""
    from keyfold_replicator.registry.open_replica import close

    store = world_of(ctx).open_location(location, pacer)
    ctx.call_on_close(lambda: close(store))
    return store


def open_side(ctx: click.Context, place: str, pacer: Pacer | None = None) -> LogDirectory:
    """Open the side that a URL or a configuration file names."""
    from keyfold_replicator.registry.open_replica import side

    location, topics_dir = where(place)
    return side(open_store(ctx, location, pacer), topics_dir)


def open_replica(ctx: click.Context, registration: Registration, allowed: AllowedCredentials) -> LogDirectory:
    """Open the replica of a registration. Raise `ConfigError` if its credentials are missing or not allowed."""
    import os

    from keyfold_replicator.registry.open_replica import side

    location = registration.location(os.environ, allowed, max_connections=CONNECTIONS)
    return side(open_store(ctx, location), registration.topics_dir)


def open_one(ctx: click.Context, place: str, name: str | None) -> LogDirectory:
    """Open the replica that PLACE [NAME] names."""
    if name is None:
        return open_side(ctx, place)
    source = open_side(ctx, place)
    return open_replica(ctx, registry_of(ctx, source).load(name), allowed_credentials(place))


def registry_of(ctx: click.Context, source: LogDirectory) -> ReplicaRegistry:
    """Return the registrations at a source."""
    from keyfold.replicas.registry import ReplicaRegistry

    world = world_of(ctx)
    return ReplicaRegistry(source.store, source.topics_dir, world.clock, Random(world.random.getrandbits(64)))


def enablement_store_of(ctx: click.Context, replica: LogDirectory) -> EnablementStore:
    """Return the permissions in a replica's bucket."""
    from keyfold.replicas.registry import EnablementStore

    world = world_of(ctx)
    return EnablementStore(replica.store, replica.topics_dir, world.clock, Random(world.random.getrandbits(64)))
