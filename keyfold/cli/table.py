"""`keyfold table`: the latest state of a topic as an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.context import CliContext
from keyfold.cli.export import row_progress, schema_of
from keyfold.cli.log import open_store_of
from keyfold.cli.log_options import document_json_option, json_option, topic_arguments
from keyfold.cli.typed import key_format_option, value_format_option
from keyfold.errors import KeyfoldError
from keyfold.runtime.terminal import echo, echo_json
from keyfold.runtime.text import count_text

if TYPE_CHECKING:
    from keyfold.table.open import OpenedTable
    from keyfold.table.sync import SyncResult

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
@key_format_option
@value_format_option
@click.option("--value-schema", type=_file, help="Avro schema to read Avro and JSON values with.")
@click.option("--key-schema", type=_file, help="Avro schema to read Avro and JSON keys with.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "null", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a key or value that cannot be decoded.",
)
@click.option("--headers", is_flag=True, help="Add a column with the records' headers.")
@click.option("--rebuild", is_flag=True, help="Make all rows again.")
@click.option("--follow", is_flag=True, help="Sync again and again until stopped, and merge and expire as needed.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="With --follow: seconds from the start of one sync to the next.",
)
@json_option
@click.pass_context
def sync(ctx: click.Context, /, url: str, topic: str, to: str, *, as_json: bool, **asked: Any) -> None:
    """Bring a table up to the newest version of a topic's log. A table that does not exist is created.

    Each sync is one snapshot with the latest state of exactly one version of each partition; its summary names them.
    Readers see all of it or nothing. Columns: partition, offset, timestamp, key, value; with Avro and JSON the value is
    a struct, and its schema grows with the records.

    \b
    Examples:
        keyfold table sync s3://bucket/topics users --to s3://lake/tables/users --value-format json
        keyfold table sync s3://bucket/topics users --to prod.shop.users --location s3://lake/users --value-format avro
        keyfold table sync s3://bucket/topics users --to s3://lake/tables/users --value-format json --follow
    """  # noqa: D301 - click wants the character
    from keyfold.export.request import OnError
    from keyfold.export.target_bucket import check_outside_logs
    from keyfold.formats.format import Format
    from keyfold.read.log import Log
    from keyfold.runtime.signals import stop_or_end_on_signals
    from keyfold.table.maintain import maintain
    from keyfold.table.request import TableRequest
    from keyfold.table.sync import sync as run_sync

    world = _world(ctx)
    store, topics_dir = open_store_of(ctx, url)
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    request = TableRequest(
        key_format=Format(asked["key_format"]),
        value_format=Format(asked["value_format"]),
        key_reader=schema_of("--key-schema", asked["key_schema"]),
        value_reader=schema_of("--value-schema", asked["value_schema"]),
        on_error=OnError(asked["on_error"]),
        headers=asked["headers"],
        rebuild=asked["rebuild"],
    )
    opened = _opened(ctx, to, asked["location"])
    check_outside_logs(store, topics_dir, opened.files.store, opened.prefix)

    def once(request: TableRequest) -> None:
        with row_progress(f"writing {topic}") as progress:
            done = run_sync(
                *(log, opened.catalog, opened.files, opened.location, request),
                clock=world.clock,
                random=world.random,
                progress=progress,
                announce=lambda text: echo(text, err=True),
            )
        for line in _json_lines(done) if as_json else _lines(done, opened.catalog.name):
            echo(line)

    once(request)
    if asked["follow"]:
        stop = stop_or_end_on_signals()
        _follow(
            lambda: once(request.again()),
            lambda: maintain(opened, world.clock, world.random),
            stop,
            asked["interval_s"],
        )


def _follow(once: Callable[[], None], maintain: Callable[[], object], stop: Any, interval_s: float) -> None:
    """Sync and maintain in turn until stopped. Errors that may pass are printed, and the next turn tries again."""
    while not stop.wait(interval_s):
        try:
            once()
            maintain()
        except KeyfoldError as error:
            if not error.retriable:
                raise
            echo(f"error: {error.message}; trying again in {interval_s:g} s", err=True)


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

    found = status_of(_existing(ctx, table))
    if as_json:
        echo_json(found.as_json())
        return
    for line in found.lines():
        echo(line)


@table.command()
@_table_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def drop(ctx: click.Context, table: str, *, yes: bool) -> None:
    """Remove a table and delete its files. The log stays as it is.

    \b
    Example:
        keyfold table drop s3://lake/tables/users --yes
    """  # noqa: D301 - click wants the character
    from keyfold.table.maintain import drop as drop_table

    opened = _existing(ctx, table)
    if not yes:
        click.confirm(f"Delete the table `{opened.catalog.name}` and its files?", abort=True)
    count = drop_table(opened)
    echo(f"dropped {opened.catalog.name}: {count_text(count, 'object')} deleted")


def _world(ctx: click.Context) -> CliContext:
    world = ctx.find_object(CliContext)
    assert world is not None
    return world


def _opened(ctx: click.Context, name: str, location: str | None) -> OpenedTable:
    from keyfold.runtime.retry import RetryPolicy
    from keyfold.table.open import open_table

    world = _world(ctx)
    retry = RetryPolicy(world.clock, world.random)
    return open_table(name, location, lambda url: open_store_of(ctx, url), retry)


def _existing(ctx: click.Context, name: str) -> OpenedTable:
    """Open a table that must exist."""
    opened = _opened(ctx, name, None)
    if opened.catalog.load() is None:
        raise KeyfoldError(f"there is no table `{name}`", hint="`keyfold table sync` creates one")
    return opened


def _json_lines(done: SyncResult) -> Iterator[str]:
    from keyfold.cli import output

    yield output.dumps(done.as_json())


def _lines(done: SyncResult, name: str) -> Iterator[str]:
    for each in done.partitions:
        rows = f"{count_text(each.added, 'row')} added, {each.hidden:,} hidden, by {each.way}"
        yield f"{each.place}: version {each.shown.anchor.version}, up to offset {each.shown.next_offset:,}; {rows}"
        yield from (f"  {example}" for example in each.mismatches.examples)
    if done.snapshot_id is None:
        yield f"{name} is up to date"
    else:
        yield f"{name}: snapshot {done.snapshot_id}"
