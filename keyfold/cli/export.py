"""`keyfold log export`: a topic's log, or its latest state, as Parquet files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.common_options import is_quiet
from keyfold.cli.context import world_of
from keyfold.cli.log import open_store_of, open_target
from keyfold.cli.log_options import (
    from_offset_option,
    from_timestamp_option,
    json_option,
    latest_option,
    partition_option,
    to_offset_option,
    topic_arguments,
)
from keyfold.cli.typed import key_format_option, on_error_option, value_format_option
from keyfold.errors import ConfigError
from keyfold.formats.format import FORMATS_WITH_SCHEMA
from keyfold.runtime.terminal import echo
from keyfold.runtime.text import count_text, size_text

if TYPE_CHECKING:
    from keyfold.export.summary import ExportedPartition
    from keyfold.export.target import ExportTarget
    from keyfold.formats.avro_schema import Type
    from keyfold.read.log import Log

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@topic_arguments
@click.option("--to", required=True, metavar="FOLDER", help="A new or empty folder, or s3://BUCKET/PREFIX.")
@partition_option
@latest_option
@from_offset_option
@from_timestamp_option
@to_offset_option
@key_format_option
@value_format_option
@click.option("--reader-schema", type=_file, help="Avro schema to read Avro and JSON values with.")
@click.option("--key-reader-schema", type=_file, help="Avro schema to read Avro and JSON keys with.")
@on_error_option
@click.option(
    "--rows-per-file", type=click.IntRange(min=1), default=5_000_000, show_default=True, help="Maximum rows per file."
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Number of partitions to export at the same time.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in the folder.")
@json_option
@click.pass_context
def export(ctx: click.Context, /, url: str, topic: str, to: str, *, as_json: bool, **asked: Any) -> None:
    """Write a topic's log, or its latest state, to Parquet files.

    Each partition is exported as of one version of its log. Files appear in the folder only when all of them are
    complete; _export.json is written last and describes the export. Columns: partition, offset, timestamp,
    timestamp_type, key, value, headers, leader_epoch. Without a reader schema the data is read twice, first to find the
    type of all values.

    \b
    Examples:
        keyfold log export s3://bucket/topics users --to ./users --latest --value-format json
        keyfold log export s3://bucket/topics users --to s3://lake/users --value-format avro --on-error skip
    """  # noqa: D301 - click wants the character
    from keyfold.export.request import ExportRequest, OnError
    from keyfold.export.run import export as run_export
    from keyfold.export.run import new_run
    from keyfold.formats.format import Format

    world = world_of(ctx)
    _check(asked)
    source = open_target(ctx, url, topic, asked["partition"])
    request = ExportRequest(
        partitions=source.partitions,
        latest=asked["latest"],
        from_offset=asked["from_offset"],
        from_timestamp=asked["from_timestamp"],
        to_offset=asked["to_offset"],
        key_format=Format(asked["key_format"]),
        value_format=Format(asked["value_format"]),
        key_reader=schema_of("--key-reader-schema", asked["key_reader_schema"]),
        value_reader=schema_of("--reader-schema", asked["reader_schema"]),
        on_error=OnError(asked["on_error"]),
        rows_per_file=asked["rows_per_file"],
        parallel=asked["parallel"],
        overwrite=asked["overwrite"],
    )
    run = new_run(world.random)
    target = _target(ctx, to, source.log, run)
    with row_progress(f"exporting {topic}") as progress:
        done = run_export(source.log, target, request, run=run, clock=world.clock, progress=progress)
    for line in _json_lines(done) if as_json else _lines(done, target.url):
        echo(line)


def _check(asked: dict[str, Any]) -> None:
    if asked["from_offset"] is not None and asked["from_timestamp"] is not None:
        raise click.UsageError("--from-offset and --from-timestamp cannot be combined")
    if asked["latest"] and not (asked["from_offset"] is asked["from_timestamp"] is asked["to_offset"] is None):
        raise click.UsageError("--latest reads the whole log: it cannot be combined with offsets or a timestamp")
    for part in ("", "key_"):
        kind = asked["key_format" if part else "value_format"]
        if asked[f"{part}reader_schema"] is not None and kind not in FORMATS_WITH_SCHEMA:
            option, of = (f"--{part}reader-schema".replace("_", "-"), "--key-format" if part else "--value-format")
            raise click.UsageError(f"{option} needs {of} {' or '.join(FORMATS_WITH_SCHEMA)}, not {kind}")


def schema_of(option: str, path: Path | None) -> Type | None:
    """Return the reader's schema in a file. Raises `ConfigError` that names the option."""
    from keyfold.formats.decoder import reader_type

    return None if path is None else reader_type(schema_text(option, path))


def schema_text(option: str, path: Path) -> str:
    """Return the reader's schema in a file, as JSON without line breaks. Raises `ConfigError` that names the option."""
    import json

    from keyfold.formats.decoder import reader_type

    try:
        text = path.read_text(encoding="utf-8")
        reader_type(text)
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError as error:
        raise ConfigError(option, f"`{path}` {error}") from error


def _target(ctx: click.Context, to: str, log: Log, run: str) -> ExportTarget:
    from keyfold.export.target_bucket import BucketTarget, check_outside_logs
    from keyfold.export.target_folder import FolderTarget
    from keyfold.runtime.retry import RetryPolicy
    from keyfold.store.location import parse_url

    if "://" not in to:
        return FolderTarget(Path(to), run)
    world = world_of(ctx)
    parse_url(to, key="--to")
    store, prefix = open_store_of(ctx, to)
    check_outside_logs(log.store, log.topics_dir, store, prefix)
    return BucketTarget(store, prefix, RetryPolicy(world.clock, world.random))


def _json_lines(done: Sequence[ExportedPartition]) -> Iterator[str]:
    from keyfold.cli import output

    yield from (output.dumps(each.as_json()) for each in done)


def _lines(done: Sequence[ExportedPartition], url: str) -> Iterator[str]:

    for each in done:
        pinned, mismatches = each.pinned, each.mismatches
        size = size_text(sum(file.staged.size_bytes for file in each.files))
        files = count_text(len(each.files), "file")
        rest = [f"{mismatches.skipped:,} skipped"] if mismatches.skipped else []
        rest += [f"{mismatches.nulled:,} made null"] if mismatches.nulled else []
        version = f"offsets [{pinned.start}, {pinned.end}) of version {pinned.manifest.version}"
        rows = count_text(each.rows, "row")
        yield f"{pinned.place}: {', '.join([f'{rows} in {files}, {size}', *rest])}; {version}"
        yield from (f"  {example}" for example in mismatches.examples)
    yield f"exported {count_text(sum(each.rows for each in done), 'row')} to {url}"


@contextmanager
def row_progress(title: str) -> Iterator[Callable[[int], None]]:
    """Show a count on stderr if that is a terminal."""
    if is_quiet() or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(title), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda count: bars.advance(task, count)
