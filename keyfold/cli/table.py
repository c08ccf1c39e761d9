"""`keyfold table`: the latest state of a topic as an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.context import CliContext, world_of
from keyfold.cli.export import row_progress, schema_text
from keyfold.cli.log import open_store_of
from keyfold.cli.log_options import document_json_option, dry_run_option, json_option, topic_arguments
from keyfold.formats.format import FORMAT_NAMES
from keyfold.runtime.terminal import echo, echo_json
from keyfold.runtime.text import count_text

if TYPE_CHECKING:
    from keyfold.read.log import Log
    from keyfold.runtime.health import Liveness
    from keyfold.runtime.retry import RetryPolicy
    from keyfold.store.api import ObjectStore
    from keyfold.table.catalog import LoadedTable
    from keyfold.table.follow import TableFollower
    from keyfold.table.open import OpenedTable
    from keyfold.table.request import TableRequest
    from keyfold.table.sync import SyncResult
    from keyfold.table.verify import VerifiedPartition

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_table_argument = click.argument("table", metavar="TABLE")


@click.group(context_settings={"max_content_width": 110})
def table() -> None:
    """Keep the latest state of a topic as an Iceberg table, for engines that do not know keyfold.

    TABLE is a folder, s3://BUCKET/FOLDER, or the name CATALOG.NAMESPACE.TABLE in a catalog that pyiceberg is
    configured for.

    \b
    Examples:
        keyfold table sync s3://bucket/topics users --to s3://lake/tables/users --value-format avro
        keyfold table status s3://lake/tables/users
    """  # noqa: D301 - click wants the character


@table.command()
@topic_arguments
@click.option("--to", required=True, metavar="TABLE", help="The table: s3://BUCKET/FOLDER or CATALOG.NAMESPACE.TABLE.")
@click.option("--location", metavar="URL", help="Where the files of a new table in a catalog belong.")
@click.option("--key-format", type=click.Choice(FORMAT_NAMES), help="How to decode keys.")
@click.option("--value-format", type=click.Choice(FORMAT_NAMES), help="How to decode values.")
@click.option("--reader-schema", type=_file, help="Avro schema to read Avro and JSON values with.")
@click.option("--key-reader-schema", type=_file, help="Avro schema to read Avro and JSON keys with.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "null", "skip"]),
    help="What to do with a key or value that cannot be decoded.",
)
@click.option("--headers", is_flag=True, default=None, help="Add a column with the records' headers.")
@click.option(
    "--partition-by",
    metavar="COLUMNS",
    help="How to partition the table, such as `day(timestamp)` or `bucket(16, key)`.",
)
@click.option("--rebuild", is_flag=True, help="Replace all rows by new ones from the log.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Number of partitions to read at the same time.",
)
@dry_run_option
@click.option("--follow", is_flag=True, help="Sync again and again until stopped, and merge and expire as needed.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="With --follow: seconds from the end of one sync to the start of the next.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="With --metrics-port: the address to listen on.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --follow: serve metrics and probes on this port: /metrics, /health/live, /health/ready. 0: none.",
)
@json_option
@click.pass_context
def sync(ctx: click.Context, /, url: str, topic: str, to: str, *, dry_run: bool, as_json: bool, **asked: Any) -> None:
    """Bring a table up to the newest version of a topic's log. A table that does not exist is created.

    Each sync is one snapshot with the latest state of exactly one version of each partition; its summary names them.
    Readers see all of it or nothing. Columns: partition, offset, timestamp, key, value; with Avro and JSON the value is
    a struct, and its schema grows with the records.

    The table keeps its options. Later syncs need not repeat them, and cannot change them. For a new table the defaults
    are the formats bytes, --on-error fail and --partition-by partition.

    \b
    Examples:
        keyfold table sync s3://bucket/topics users --to s3://lake/tables/users --value-format json
        keyfold table sync s3://bucket/topics users --to prod.shop.users --location s3://lake/users --value-format avro
        keyfold table sync s3://bucket/topics users --to s3://lake/tables/users --follow --metrics-port 9406
    """  # noqa: D301 - click wants the character
    from keyfold.export.target_bucket import check_outside_logs
    from keyfold.read.log import Log
    from keyfold.runtime.health import Liveness
    from keyfold.runtime.signals import stop_or_end_on_signals
    from keyfold.store.wrappers.observation import ObservedStore
    from keyfold.table.follow import QUIET_MAX_S, SignsOfLife
    from keyfold.table.open import open_table

    if asked["metrics_port"] and not asked["follow"]:
        raise click.UsageError("--metrics-port requires --follow")
    world = world_of(ctx)
    is_following = asked["follow"] and not dry_run
    stop = stop_or_end_on_signals() if is_following else Event()
    liveness = Liveness(world.clock, QUIET_MAX_S + asked["interval_s"], stop.is_set)

    def open_url(url: str) -> tuple[ObjectStore, str]:
        store, folder = open_store_of(ctx, url)
        return ObservedStore(store, SignsOfLife(liveness)), folder

    store, topics_dir = open_url(url)
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    opened = open_table(to, asked["location"], open_url, _retry(ctx))
    request = _request(opened, asked)
    check_outside_logs(store, topics_dir, opened.files.store, opened.prefix)
    command = _SyncCommand(log, opened, world, dry_run, as_json)
    if not is_following:
        command.sync(request)
        return
    follower = command.follower(request, liveness)
    with _measuring(follower, asked["metrics_host"], asked["metrics_port"]):
        follower.run(stop, asked["interval_s"])


@dataclass(frozen=True, slots=True)
class _SyncCommand:
    """What `keyfold table sync` does once its log and its table are open."""

    log: Log
    opened: OpenedTable
    world: CliContext
    dry_run: bool
    as_json: bool

    def sync(self, request: TableRequest) -> SyncResult:
        """Sync once, and print what was done."""
        from keyfold.cli import output
        from keyfold.table.sync import sync

        with row_progress(f"writing {self.log.topic}") as progress:
            done = sync(
                *(self.log, self.opened, request),
                clock=self.world.clock,
                random=self.world.random,
                dry_run=self.dry_run,
                progress=progress,
                announce=lambda text: echo(text, err=True),
            )
        if self.as_json:
            echo(output.dumps({"dry_run": self.dry_run, **done.as_json()}))
        else:
            for line in done.lines(self.opened.catalog.name):
                echo(line)
        return done

    def follower(self, request: TableRequest, liveness: Liveness) -> TableFollower:
        """Return what repeats the sync, and does the upkeep."""
        from keyfold.table.follow import TableFollower, shown_since_ms
        from keyfold.table.maintain import maintain
        from keyfold.table.metrics import TableMeter

        clock = self.world.clock
        synced_ms = shown_since_ms(self.opened.catalog.load(), clock.now_ms())
        return TableFollower(
            sync=lambda is_first: self.sync(request if is_first else request.again()),
            maintain=lambda: maintain(self.opened, clock, self.world.random),
            report=lambda text: echo(text, err=True),
            meter=TableMeter(self.log.topic, self.opened.catalog.name, synced_ms),
            liveness=liveness,
            clock=clock,
        )


@contextmanager
def _measuring(follower: TableFollower, host: str, port: int) -> Iterator[None]:
    """Serve metrics and answer probes, if a port is given."""
    if not port:
        yield
        return
    from keyfold.runtime.metrics_server import serving

    with serving(follower.meter.registry, host, port, follower.liveness, keys=("--metrics-host", "--metrics-port")):
        yield


def _request(opened: OpenedTable, asked: Mapping[str, Any]) -> TableRequest:
    """Return the options that were given, and for the others those of the table."""
    from dataclasses import replace

    from keyfold.export.request import OnError
    from keyfold.formats.format import Format
    from keyfold.table.request import TableRequest, request_of

    loaded = opened.catalog.load()
    kept = TableRequest() if loaded is None else request_of(loaded.metadata.properties, opened.catalog.name)
    parsers: dict[str, Callable[[Any], object]] = {
        "key_format": Format,
        "value_format": Format,
        "on_error": OnError,
        "headers": bool,
        "partition_by": str,
        "reader_schema": lambda path: schema_text("--reader-schema", path),
        "key_reader_schema": lambda path: schema_text("--key-reader-schema", path),
    }
    given: dict[str, Any] = {name: parse(asked[name]) for name, parse in parsers.items() if asked[name] is not None}
    return replace(kept, rebuild=asked["rebuild"], parallel=asked["parallel"], **given)


@table.command()
@_table_argument
@document_json_option
@click.pass_context
def status(ctx: click.Context, table: str, *, as_json: bool) -> None:
    """Show what a table holds: its topic, rows, files and hidden rows, and the version that it shows of each partition.

    \b
    Example:
        keyfold table status s3://lake/tables/users
    """  # noqa: D301 - click wants the character
    from keyfold.table.status import status_of
    from keyfold.table.table import TableVersion

    opened, loaded = _existing(ctx, table)
    found = status_of(opened.catalog.name, TableVersion(opened.files, loaded))
    if as_json:
        echo_json(found.as_json())
        return
    for line in found.lines():
        echo(line)


@table.command()
@topic_arguments
@_table_argument
@json_option
@click.pass_context
def verify(ctx: click.Context, /, url: str, topic: str, table: str, *, as_json: bool) -> None:
    """Compare every row of a table with the log, and prove that no row is missing. Exit with 1 if one differs.

    The table may be behind the log. If it is so far behind that it cannot be judged, sync first.

    \b
    Example:
        keyfold table verify s3://bucket/topics users s3://lake/tables/users
    """  # noqa: D301 - click wants the character
    from keyfold.cli import output
    from keyfold.read.log import Log
    from keyfold.table.request import request_of, require_same
    from keyfold.table.table import TableVersion
    from keyfold.table.verify import verify as run_verify

    world = world_of(ctx)
    store, topics_dir = open_store_of(ctx, url)
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    opened, loaded = _existing(ctx, table)
    request = request_of(loaded.metadata.properties, table)
    require_same(loaded.metadata.properties, request, topic, table)
    with row_progress(f"verifying {table}") as progress:
        found = run_verify(log, TableVersion(opened.files, loaded), request, progress=progress)
    for each in found:
        echo(output.dumps({"topic": topic, **each.as_json()}) if as_json else _verified_text(topic, each))
    raise click.exceptions.Exit(0 if all(each.is_right for each in found) else 1)


def _verified_text(topic: str, found: VerifiedPartition) -> str:
    rows = count_text(found.rows, "row")
    if found.is_right:
        return f"{topic}-{found.partition}: {rows}, all as in the log"
    return "\n  ".join([f"{topic}-{found.partition}: {rows}, NOT as in the log", *found.lines()])


@table.command()
@_table_argument
@click.option(
    "--files-max",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Merge small files of a partition with more files than this.",
)
@click.option(
    "--hidden-max",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Rewrite files of which a larger share of the rows is hidden.",
)
@click.option(
    "--keep-seconds",
    "keep_s",
    type=click.IntRange(min=0),
    default=3600,
    show_default=True,
    help="Seconds that replaced snapshots and unnamed objects stay.",
)
@dry_run_option
@document_json_option
@click.pass_context
def merge(
    ctx: click.Context, table: str, *, files_max: int, hidden_max: float, keep_s: int, dry_run: bool, as_json: bool
) -> None:
    """Merge small files, forget old snapshots, and delete objects that no snapshot names. No row changes.

    `keyfold table sync --follow` does this by itself.

    \b
    Examples:
        keyfold table merge s3://lake/tables/users --dry-run
        keyfold table merge s3://lake/tables/users --files-max 1 --hidden-max 0
    """  # noqa: D301 - click wants the character
    from keyfold.table.maintain import collect, expire, plan_of, retried
    from keyfold.table.maintain import merge as run_merge
    from keyfold.table.table import TableVersion

    world = world_of(ctx)
    opened, loaded = _existing(ctx, table)
    done: dict[str, int] = {}
    if dry_run:
        plan = plan_of(TableVersion(opened.files, loaded), files_max, hidden_max)
        chosen = [each for found in plan.values() for each in found]
        done |= {"merged": len(chosen), "rows": sum(each.visible for each in chosen)}
    else:
        clock, random = world.clock, world.random
        merged = retried(
            lambda: run_merge(opened, clock=clock, random=random, files_max=files_max, hidden_max=hidden_max)
        )
        done |= {"merged": merged.removed, "rows": merged.rows} if merged else {"merged": 0, "rows": 0}
        done["expired"] = retried(lambda: expire(opened, clock.now_ms(), 1000 * keep_s))
        done["deleted"] = retried(lambda: collect(opened, clock=clock, random=random, age_ms=1000 * keep_s))
    if as_json:
        echo_json({"table": table, "dry_run": dry_run, **done})
        return
    verb = "to merge" if dry_run else "merged"
    echo(f"{table}: {count_text(done['merged'], 'file')} {verb}, {count_text(done['rows'], 'row')}")
    if not dry_run:
        snapshots, objects = count_text(done["expired"], "snapshot"), count_text(done["deleted"], "object")
        echo(f"  {snapshots} forgotten, {objects} deleted")


@table.command()
@_table_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@document_json_option
@click.pass_context
def drop(ctx: click.Context, table: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove a table and delete its files. The log stays as it is.

    \b
    Example:
        keyfold table drop s3://lake/tables/users --yes
    """  # noqa: D301 - click wants the character
    from keyfold.table.maintain import drop as drop_table

    opened, _ = _existing(ctx, table)
    if not yes and not dry_run:
        click.confirm(f"Delete the table `{opened.catalog.name}` and its files?", abort=True)
    count = drop_table(opened, dry_run=dry_run)
    if as_json:
        echo_json({"table": table, "dry_run": dry_run, "objects": count})
    elif dry_run:
        echo(f"{opened.catalog.name}: {count_text(count, 'object')} to delete")
    else:
        echo(f"dropped {opened.catalog.name}: {count_text(count, 'object')} deleted")


def _retry(ctx: click.Context) -> RetryPolicy:
    from keyfold.runtime.retry import RetryPolicy

    world = world_of(ctx)
    return RetryPolicy(world.clock, world.random)


def _existing(ctx: click.Context, name: str) -> tuple[OpenedTable, LoadedTable]:
    """Open a table that must exist."""
    from keyfold.table.open import existing_table

    return existing_table(name, lambda url: open_store_of(ctx, url), _retry(ctx))
