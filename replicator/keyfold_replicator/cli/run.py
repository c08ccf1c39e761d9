"""`keyfold replica run`, `resync` and `status`: replicate, and show the status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of
from keyfold.cli.log_options import document_json_option, partitions_option, topics_option
from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.terminal import echo, echo_json
from keyfold_replicator.cli.environment import context_of
from keyfold_replicator.cli.locations import (
    allowed_credentials,
    name_argument,
    open_replica,
    open_side,
    open_store,
    registry_of,
    source_argument,
)

if TYPE_CHECKING:
    from keyfold.config.allowed_credentials import AllowedCredentials
    from keyfold.replicas.documents import Registration
    from keyfold.runtime.health import Probed
    from keyfold.store.pacing import Pacer
    from keyfold_replicator.registry.replica_pair import LogDirectory
    from keyfold_replicator.registry.run_options import RunOptions
    from keyfold_replicator.rounds.runner import RunSummary
    from keyfold_replicator.rounds.service import ReplicationObserver


@click.command(short_help="Replicate until stopped.", epilog="Example: keyfold replica run s3://log/topics dr")
@source_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="Exit after one round, with code 1 if a partition failed; for a CronJob.")
@topics_option
@partitions_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --once: print one JSON document, an object for one NAME, else a list. Otherwise: log as JSON.",
)
@click.pass_context
def run(
    ctx: click.Context,
    source: str,
    names: Sequence[str],
    topics: Sequence[str],
    partitions: Sequence[int],
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Replicate to all replicas of a source, or to the named ones, until the command is stopped.

    SOURCE may be a configuration file with the keys of the replicator (docs/configuration.md). The command notices
    replicas that are registered, edited or removed while it runs. Run one process for a replica: a second process takes
    over from the first, and both slow each other down, although they cannot damage the replica.
    """
    from keyfold.runtime.event_log import configure
    from keyfold.runtime.health import Liveness
    from keyfold.runtime.signals import stop_or_end_on_signals
    from keyfold.store.wrappers.observation import ObservedStore
    from keyfold_replicator.rounds.service import Replication, RoundSelection, quiet_max_s

    if not once and (topics or partitions):
        raise click.UsageError("--topic and --partition require --once")
    options = _options(source)
    configure(json=as_json, level=options.log_level)
    pacer = _pacer(ctx, options)
    ours = _source(ctx, source, options, pacer)
    context = context_of(ctx, options.settings, pacer, options.allowed_credentials)
    stop = stop_or_end_on_signals()
    liveness = Liveness(world_of(ctx).clock, quiet_max_s(options.settings), stop.is_set)
    ours = replace(ours, store=ObservedStore(ours.store, liveness))
    registry = registry_of(ctx, ours)
    for name in names:
        registry.load(name)  # raises if the replica is not registered; the loop would wait for it
    with _measuring(options, liveness) as observer:
        replication = Replication(ours, context, names or options.replicas, observer=observer, liveness=liveness)
        if not once:
            replication.loop(stop)
            return
        found = replication.once(stop.is_set, RoundSelection(frozenset(topics), frozenset(partitions)))
    _tell(found, topics, partitions, as_json=as_json, is_one=len(names) == 1)
    if not found:
        echo("no replica is registered", err=True)
    raise click.exceptions.Exit(1 if any(each.error or each.failed for each in found.values()) else 0)


@click.command(
    short_help="Continue a replica that has missed tombstones.",
    epilog="Example: keyfold replica resync s3://log/topics dr --topic users",
)
@source_argument
@name_argument
@topics_option
@partitions_option
@document_json_option
@click.pass_context
def resync(
    ctx: click.Context, source: str, name: str, topics: Sequence[str], partitions: Sequence[int], *, as_json: bool
) -> None:
    """Bring a replica to the source's newest version although it has missed tombstones.

    Use it for partitions that `status` shows as resync-required: the source has purged tombstones that the replica
    never received. Only missing objects are copied. Readers at the replica that started before the resync get an error
    and have to start again, because they would keep keys that were deleted.
    """
    from keyfold_replicator.rounds.service import Replication, RoundSelection

    ours = open_side(ctx, source)
    registration = registry_of(ctx, ours).load(name)
    if registration.is_paused:
        raise KeyfoldError(f"replica {name} is paused", hint=f"resume it first: keyfold replica resume {source} {name}")
    context = context_of(ctx, allowed=allowed_credentials(source))
    selection = RoundSelection(frozenset(topics), frozenset(partitions), resync=True)
    found = Replication(ours, context, (name,)).once(selection=selection)
    _tell(found, topics, partitions, as_json=as_json, is_one=True)
    raise click.exceptions.Exit(1 if any(each.error or each.failed for each in found.values()) else 0)


@click.command(
    short_help="Show state, lag and errors of replicas.",
    epilog="Example: keyfold replica status s3://log/topics dr --json",
)
@source_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@topics_option
@partitions_option
@click.option(
    "--all", "all_partitions", is_flag=True, help="Print a line for every partition, including those in sync."
)
@click.option("--check", is_flag=True, help="Exit with code 1 unless everything is in sync.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document with all partitions: an object for one NAME, else a list of replicas.",
)
@click.pass_context
def status(
    ctx: click.Context,
    source: str,
    names: Sequence[str],
    topics: Sequence[str],
    partitions: Sequence[int],
    *,
    all_partitions: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Show the status of replicas: what is pending, how far behind they are, errors, and what to do about them.

    The command reads both sides, and the last status that the replicating process wrote. If the replica does not
    answer, the pending amount is calculated from what the source knows.
    """
    from keyfold_replicator.rounds.service import RoundSelection
    from keyfold_replicator.state.states import SyncState
    from keyfold_replicator.status.status import gather_status
    from keyfold_replicator.status.status_text import status_document, status_lines

    ours = open_side(ctx, source)
    registry = registry_of(ctx, ours)
    allowed = allowed_credentials(source)
    registrations = [registry.load(name) for name in names] if names else registry.all()
    all_in_sync = True
    documents: list[JsonObject] = []
    for registration in registrations:
        found = gather_status(
            registration,
            ours,
            _opened(ctx, registration, allowed),
            now_ms=world_of(ctx).clock.now_ms(),
            wanted=RoundSelection(frozenset(topics), frozenset(partitions)).covers,
        )
        all_in_sync = all_in_sync and found.summary.state is SyncState.IN_SYNC and not found.summary.errors
        if as_json:
            documents.append(status_document(found))
            continue
        for line in status_lines(found, all_partitions=all_partitions):
            echo(line)
    if as_json:
        echo_json(documents[0] if len(names) == 1 else documents)
    if not registrations:
        echo("no replica is registered", err=True)
    raise click.exceptions.Exit(1 if check and not all_in_sync else 0)


def _opened(ctx: click.Context, registration: Registration, allowed: AllowedCredentials) -> LogDirectory | KeyfoldError:
    """Open the replica's side. Return the error if a credential is missing or not allowed on this machine."""
    try:
        return open_replica(ctx, registration, allowed)
    except ConfigError as error:
        return error


def _options(source: str) -> RunOptions:
    """Return the configuration of the process: that of a file, or the defaults with a URL."""
    from keyfold.config.options import read_config
    from keyfold.store.location import parse_url
    from keyfold_replicator.registry.run_options import RunOptions

    if "://" not in source:
        return RunOptions.parse(read_config(source))
    bucket, topics_dir = parse_url(source)
    return RunOptions.parse({"s3.bucket.name": bucket, "topics.dir": topics_dir})


def _source(ctx: click.Context, source: str, options: RunOptions, pacer: Pacer | None) -> LogDirectory:
    """Open the source's side, with connections for all threads of all replicas."""
    from keyfold_replicator.cli.locations import where
    from keyfold_replicator.registry.open_replica import side

    location, topics_dir = where(source)
    location = location.adjusted(max_connections=4 * options.threads)
    return side(open_store(ctx, location, pacer), topics_dir)


def _pacer(ctx: click.Context, options: RunOptions) -> Pacer | None:
    from keyfold.runtime.throttle import paced

    return paced(options.io_max_bytes_per_second, world_of(ctx).clock)


@contextlib.contextmanager
def _measuring(options: RunOptions, checked: Probed) -> Iterator[ReplicationObserver | None]:
    """Serve metrics and answer probes while the command runs, if `metrics.port` is set."""
    if not options.metrics_port:
        yield None
        return
    from keyfold.runtime.metrics_server import serving
    from keyfold_replicator.status.metrics import ReplicaMeter

    meter = ReplicaMeter()
    with serving(meter.registry, options.metrics_host, options.metrics_port, checked):
        yield meter


def _tell(
    found: Mapping[str, RunSummary], topics: Sequence[str], partitions: Sequence[int], *, as_json: bool, is_one: bool
) -> None:
    """Print the results. Raise `KeyfoldError` if no replica takes what was selected, which is probably misspelt."""
    from keyfold_replicator.cli.show import run_json, run_lines

    error = _not_taken(found, topics, partitions)
    if error is not None and not any(each.states for each in found.values()):
        raise error
    if as_json:
        documents = [run_json(name, each) for name, each in found.items()]
        echo_json(documents[0] if is_one else documents)
    else:
        for name, each in found.items():
            for line in run_lines(name, each):
                echo(line)
    if error is not None:
        raise error


def _not_taken(
    found: Mapping[str, RunSummary], topics: Sequence[str], partitions: Sequence[int]
) -> KeyfoldError | None:
    """Return an error if no replica takes one of the topics or partitions; None if one might."""
    if any(each.error or each.is_paused for each in found.values()) or not found:
        return None
    places = [state.place for each in found.values() for state in each.states]
    no_topics = sorted({*topics} - {place.topic for place in places})
    no_partitions = sorted({*partitions} - {place.partition for place in places})
    if no_topics or no_partitions:
        asked = [_named("topic", no_topics)] if no_topics else []
        asked += [_named("partition", no_partitions)] if no_partitions else []
        return KeyfoldError(
            f"{' and '.join(found)} {'does' if len(found) == 1 else 'do'} not replicate {', '.join(asked)}",
            hint="`keyfold log list <source>` lists all logs, `keyfold replica list <source>` each replica's topics",
        )
    return None


def _named(noun: str, missing: Sequence[object]) -> str:
    return f"{noun}{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
