"""`keyfold replica`: the registrations of replicas. `rights`, `work` and `switch` add their commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of
from keyfold.cli.log_options import document_json_option
from keyfold.errors import ConfigError
from keyfold.runtime.terminal import echo, echo_json
from keyfold_replicator.cli.compaction import disable_compaction, enable_compaction
from keyfold_replicator.cli.config import changes_of, config_of, replica_options
from keyfold_replicator.cli.holds import drop_holds
from keyfold_replicator.cli.locations import (
    allowed_credentials,
    enablement_store_of,
    name_argument,
    open_replica,
    open_side,
    registry_of,
    source_argument,
)
from keyfold_replicator.cli.promote import demote, promote
from keyfold_replicator.cli.run import resync, run, status

if TYPE_CHECKING:
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold.replicas.documents import Registration
    from keyfold_replicator.registry.admission import Admission
    from keyfold_replicator.registry.replica_pair import LogDirectory


@click.group(context_settings={"max_content_width": 110})
def replica() -> None:
    """Replicate logs to another bucket, and promote a replica to be the source.

    SOURCE is s3://bucket/topics.dir, opened with the usual AWS variables, or a configuration file with the keys of the
    store, such as the compactor's. NAME is the name of a replica that is registered at SOURCE.

    \b
    Replicate all topics to another region, and show the status:
        keyfold replica add s3://log/topics dr --to s3://log-dr/topics --region eu-west-1 --enable-compaction
        keyfold replica run s3://log/topics
        keyfold replica status s3://log/topics dr
    """  # noqa: D301 - click wants the character


for command in (disable_compaction, enable_compaction, demote, promote, resync, run, status):
    replica.add_command(command)


@replica.command(
    short_help="Register a replica.",
    epilog="Example: keyfold replica add s3://log/topics dr --to s3://log-dr/topics --region eu-west-1 "
    "--access-key-id '${env:KEYFOLD_REPLICA_DR_ID}' --secret-access-key '${env:KEYFOLD_REPLICA_DR_SECRET}'",
)
@source_argument
@name_argument
@click.option("--to", required=True, metavar="URL", help="s3://bucket/topics.dir of the replica.")
@replica_options
@click.option(
    "--enable-compaction",
    "accepts_compacted",
    is_flag=True,
    help="Also accept compacted logs at the replica, for all topics, as `keyfold replica enable-compaction` does.",
)
@click.option("--paused", is_flag=True, help="Do not replicate before `keyfold replica resume`.")
@click.option("--no-probe", is_flag=True, help="Do not check the replica's bucket, if this machine cannot reach it.")
@document_json_option
@click.pass_context
def add(
    ctx: click.Context,
    /,
    source: str,
    name: str,
    to: str,
    *,
    accepts_compacted: bool,
    paused: bool,
    no_probe: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Register a replica, after checking its bucket.

    The bucket must exist, and under the URL it must be empty or have a replica of this source. From then on the source
    keeps tombstones that the replica has not received, for at most replica.hold.max.ms.

    A compacted log is replicated only if the replica's bucket accepts compacted logs. --enable-compaction makes it
    accept them before the replica is registered. If that fails, the replica is not registered.
    """
    from keyfold.replicas.documents import Registration

    if accepts_compacted and no_probe:
        raise click.UsageError("--enable-compaction writes to the replica's bucket, which --no-probe leaves alone")
    asked = Registration(name, config_of(to, options), is_paused=paused)
    ours = open_side(ctx, source)
    registry = registry_of(ctx, ours)
    registry.check(asked)
    allowed = allowed_credentials(source)
    theirs = None if no_probe else open_replica(ctx, asked, allowed)
    found = None if theirs is None else _admit(ctx, asked, ours, theirs)
    enablement = None
    if accepts_compacted and theirs is not None and found is not None:
        from keyfold_replicator.registry.admission import topics_not_enabled
        from keyfold_replicator.registry.registering import register_with_compaction

        made, enablement = register_with_compaction(asked, registry, enablement_store_of(ctx, theirs))
        found = replace(found, not_enabled=topics_not_enabled(found.compacted, enablement))
    else:
        made = registry.add(asked)
    _warn(made, allowed)
    from keyfold_replicator.cli.show import (
        admission_json,
        admission_lines,
        enablement_json,
        enablement_lines,
        registration_json,
        topics_text,
    )

    if as_json:
        compaction = None if enablement is None else enablement_json(enablement, made.url, enablement.exceptions())
        checked = None if found is None else admission_json(found)
        echo_json({**registration_json(made), "found": checked, "enablement": compaction})
        return
    echo(f"{made.name} is registered: {made.url}, {topics_text(made.config)}")
    if enablement is not None:
        again = f"keyfold replica enable-compaction {source} {name}"
        _print(enablement_lines(enablement, made.url, enablement.exceptions(), again))
    if found is not None:
        _print(admission_lines(found, f"{source} {name}"))
    echo(f"next: keyfold replica {'resume' if paused else 'run'} {source}{f' {name}' if paused else ''}")


@replica.command(
    short_help="Change where a replica is, or which topics it takes.",
    epilog="Example: keyfold replica edit s3://log/topics dr --topics users,orders",
)
@source_argument
@name_argument
@click.option("--to", metavar="URL", help="New URL, where the replica has received nothing yet.")
@replica_options
@click.option("--all-topics", is_flag=True, help="Replicate all topics.")
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a key, so that its default applies. Repeatable.")
@click.option("--no-probe", is_flag=True, help="Do not check the replica's bucket, if this machine cannot reach it.")
@document_json_option
@click.pass_context
def edit(
    ctx: click.Context,
    /,
    source: str,
    name: str,
    to: str | None,
    unset: Sequence[str],
    *,
    all_topics: bool,
    no_probe: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Change where a replica is, how it is reached, or which topics it takes. Other settings stay as they are."""
    changes = changes_of(to, options, unset, all_topics=all_topics)
    ours = open_side(ctx, source)
    registry = registry_of(ctx, ours)
    before = registry.load(name)
    asked = before.edited(changes, new_cursor_id="")
    registry.check(asked)
    allowed = allowed_credentials(source)
    found = None if no_probe else _admit(ctx, asked, ours, open_replica(ctx, asked, allowed))
    made = registry.edit(name, changes)
    _warn(made, allowed)
    if made.hold_name != before.hold_name:
        drop_holds(ctx, ours, before.hold_name)
    from keyfold_replicator.cli.show import (
        admission_json,
        admission_lines,
        registration_json,
        registration_lines,
    )

    if as_json:
        echo_json({**registration_json(made), "found": None if found is None else admission_json(found)})
        return
    _print(registration_lines(made))
    if found is not None:
        _print(admission_lines(found, f"{source} {name}"))


@replica.command(
    "list", short_help="List the replicas of a source.", epilog="Example: keyfold replica list s3://log/topics --json"
)
@source_argument
@document_json_option
@click.pass_context
def list_(ctx: click.Context, source: str, *, as_json: bool) -> None:
    """List the registered replicas of a source. `keyfold replica status` shows their state."""
    from keyfold_replicator.cli.show import registration_json, registration_lines

    found = registry_of(ctx, open_side(ctx, source)).all()
    if as_json:
        echo_json([registration_json(each) for each in found])
        return
    for each in found:
        _print(registration_lines(each))
    if not found:
        echo("no replica is registered", err=True)


@replica.command(short_help="Pause a replica.", epilog="Example: keyfold replica pause s3://log/topics dr")
@source_argument
@name_argument
@document_json_option
@click.pass_context
def pause(ctx: click.Context, source: str, name: str, *, as_json: bool) -> None:
    """Stop replicating to a replica until it is resumed. Rounds in progress are finished.

    The source still keeps tombstones for the replica, for at most replica.hold.max.ms.
    """
    _tell(registry_of(ctx, open_side(ctx, source)).pause(name), "is paused", as_json=as_json)


@replica.command(epilog="Example: keyfold replica resume s3://log/topics dr")
@source_argument
@name_argument
@document_json_option
@click.pass_context
def resume(ctx: click.Context, source: str, name: str, *, as_json: bool) -> None:
    """Resume a paused replica."""
    _tell(registry_of(ctx, open_side(ctx, source)).resume(name), "is resumed", as_json=as_json)


@replica.command(
    short_help="Remove a registration; the replica's data stays.",
    epilog="Example: keyfold replica remove s3://log/topics dr",
)
@source_argument
@name_argument
@document_json_option
@click.pass_context
def remove(ctx: click.Context, source: str, name: str, *, as_json: bool) -> None:
    """Remove the registration of a replica. It receives nothing more, and the source keeps no tombstones for it.

    The replica's data stays and can be read as before. `keyfold replica promote` makes the replica an independent log.
    """
    ours = open_side(ctx, source)
    removed = registry_of(ctx, ours).remove(name)
    drop_holds(ctx, ours, removed.hold_name)
    _tell(removed, "is no longer registered; its data stays", as_json=as_json)


def _warn(made: Registration, allowed: AllowedCredentials) -> None:
    """Warn of a credential that this process does not allow (--no-probe): the process that replicates must allow it."""
    try:
        made.require_allowed(allowed)
    except ConfigError as error:
        echo(f"warning: {error.message}: the replicator must allow this credential", err=True)


def _admit(ctx: click.Context, asked: Registration, ours: LogDirectory, theirs: LogDirectory) -> Admission:
    """Check the replica of a registration that is not saved yet."""
    from keyfold_replicator.registry.admission import admit

    world = world_of(ctx)
    enablement = enablement_store_of(ctx, theirs).load()
    return admit(asked, ours, theirs, enablement, clock=world.clock, random=Random(world.random.getrandbits(64)))


def _tell(made: Registration, what: str, *, as_json: bool) -> None:
    from keyfold_replicator.cli.show import registration_json

    if as_json:
        echo_json(registration_json(made))
    else:
        echo(f"{made.name} {what}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)
