"""`keyfold replica run`, `resync` and `status`: replicate, and show the status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from keyfold.errors import ConfigError, KeyfoldError
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
    world_of,
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

topic_option = click.option("--topic", help="Only this topic.")
partition_option = click.option("--partition", "-p", type=click.IntRange(min=0), help="Only this partition.")


@click.command(short_help="Replicate until stopped.", epilog="Example: keyfold replica run s3://log/topics dr")
@source_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="Exit after one round, with code 1 if a partition failed; for a CronJob.")
@topic_option
@partition_option
@click.option(
    "--json", "as_json", is_flag=True, help="With --once: print one JSON object per replica. Otherwise: log as JSON."
)
@click.pass_context
def run(
    ctx: click.Context,
    source: str,
    names: Sequence[str],
    topic: str | None,
    partition: int | None,
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

    if not once and (topic is not None or partition is not None):
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
        found = replication.once(stop.is_set, RoundSelection(topic, partition))
    _require_taken(found, topic, partition)
    _tell(found, as_json=as_json)
    if not found:
        echo("no replica is registered", err=True)
    raise click.exceptions.Exit(1 if any(each.error or each.failed for each in found.values()) else 0)


@click.command(
    short_help="Continue a replica that has missed tombstones.",
    epilog="Example: keyfold replica resync s3://log/topics dr --topic users",
)
@source_argument
@name_argument
@topic_option
@partition_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def resync(
    ctx: click.Context, source: str, name: str, topic: str | None, partition: int | None, *, as_json: bool
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
    found = Replication(ours, context, (name,)).once(selection=RoundSelection(topic, partition, resync=True))
    _require_taken(found, topic, partition)
    _tell(found, as_json=as_json)
    raise click.exceptions.Exit(1 if any(each.error or each.failed for each in found.values()) else 0)


@click.command(
    short_help="Show state, lag and errors of replicas.",
    epilog="Example: keyfold replica status s3://log/topics dr --json",
)
@source_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@topic_option
@partition_option
@click.option(
    "--all", "all_partitions", is_flag=True, help="Print a line for every partition, including those in sync."
)
@click.option("--check", is_flag=True, help="Exit with code 1 unless everything is in sync.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per replica, with all partitions.")
@click.pass_context
def status(
    ctx: click.Context,
    source: str,
    names: Sequence[str],
    topic: str | None,
    partition: int | None,
    *,
    all_partitions: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Show the status of replicas: what is pending, how far behind they are, errors, and what to do about them.

    The command reads both sides, and the last status that the replicating process wrote. If the replica does not
    answer, the pending amount is calculated from what the source knows.
    """
    from keyfold_replicator.state.states import SyncState
    from keyfold_replicator.status.status import gather_status
    from keyfold_replicator.status.status_text import status_document, status_lines

    ours = open_side(ctx, source)
    registry = registry_of(ctx, ours)
    allowed = allowed_credentials(source)
    registrations = [registry.load(name) for name in names] if names else registry.all()
    all_in_sync = True
    for registration in registrations:
        found = gather_status(
            registration,
            ours,
            _opened(ctx, registration, allowed),
            now_ms=world_of(ctx).clock.now_ms(),
            wanted=lambda place: topic in {None, place.topic} and partition in {None, place.partition},
        )
        all_in_sync = all_in_sync and found.summary.state is SyncState.IN_SYNC and not found.summary.errors
        if as_json:
            echo_json(status_document(found))
            continue
        for line in status_lines(found, all_partitions=all_partitions):
            echo(line)
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
    from keyfold.runtime.throttle import BudgetPacer, TokenBucket

    rate = options.io_max_bytes_per_second
    if rate is None:
        return None
    clock = world_of(ctx).clock
    return BudgetPacer(TokenBucket(rate, clock), clock, rate)


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


def _require_taken(found: Mapping[str, RunSummary], topic: str | None, partition: int | None) -> None:
    """Raise `KeyfoldError` if no replica takes the given topic or partition, which is probably misspelt."""
    asked = [f"topic {topic}"] if topic is not None else []
    asked += [f"partition {partition}"] if partition is not None else []
    if asked and found and not any(each.states or each.error or each.is_paused for each in found.values()):
        raise KeyfoldError(
            f"{' and '.join(found)} {'does' if len(found) == 1 else 'do'} not replicate {', '.join(asked)}",
            hint="`keyfold log list <source>` lists all logs, `keyfold replica list <source>` each replica's topics",
        )


def _tell(found: Mapping[str, RunSummary], *, as_json: bool) -> None:
    from keyfold_replicator.cli.show import run_json, run_lines

    for name, each in found.items():
        if as_json:
            echo_json(run_json(name, each))
            continue
        for line in run_lines(name, each):
            echo(line)
