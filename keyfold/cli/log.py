"""`keyfold log`: look at logs and read them. `keyfold.cli.verify` and `export` add their commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from keyfold.cli.app import Surroundings
from keyfold.cli.typed import Printer, key_format_option, value_format_option
from keyfold.errors import ConfigError, KeyfoldError, is_of_one_partition
from keyfold.terminal import echo

if TYPE_CHECKING:
    from keyfold.log.manifest import Manifest
    from keyfold.log.names import Place
    from keyfold.log.record import Record
    from keyfold.read.log import Log
    from keyfold.store.api import ObjectStore

_MANIFESTS_AT_ONCE = 8

F = TypeVar("F", bound=Callable[..., Any])


class Timestamp(click.ParamType[int]):
    """Milliseconds since the epoch, or ISO-8601 (UTC where it names no zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms."""
        if isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither milliseconds nor ISO-8601 such as 2026-01-31T12:00:00Z", param, ctx)
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)


class LogUrl(click.ParamType[str]):
    """`s3://<bucket>/<topics.dir>`."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The URL, as it was given."""
        from keyfold.store.location import parse_url

        try:
            parse_url(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        return str(value)


url_argument = click.argument("url", metavar="URL", type=LogUrl())
_topic_argument = click.argument("topic", metavar="TOPIC")


def topic_arguments(function: F) -> F:
    """The arguments URL and TOPIC."""
    named: F = _topic_argument(function)
    with_url: F = url_argument(named)
    return with_url


partition_option = click.option("--partition", "-p", type=click.IntRange(min=0), help="Only this partition.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@dataclass(frozen=True, slots=True)
class Target:
    """A topic below a URL, opened, and the partitions that are asked for."""

    store: ObjectStore
    log: Log
    partitions: tuple[int, ...]


def open_store_of(ctx: click.Context, url: str) -> tuple[ObjectStore, str]:
    """The store of a URL, closed when the command ends, and the topics.dir."""
    world = ctx.find_object(Surroundings)
    assert world is not None
    store, topics_dir = world.open_store(url)
    ctx.call_on_close(getattr(store, "close", None) or (lambda: None))
    return store, topics_dir


def open_target(ctx: click.Context, url: str, topic: str, partition: int | None) -> Target:
    """The topic below a URL, and the partition that is asked for, or all."""
    from keyfold.read.log import Log

    world = ctx.find_object(Surroundings)
    assert world is not None
    store, topics_dir = open_store_of(ctx, url)
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    partitions = tuple(log.partitions()) if partition is None else (partition,)
    return Target(store, log, partitions)


@click.group(context_settings={"max_content_width": 110})
def log() -> None:
    """Look at logs in a bucket, read them, verify and repair them.

    URL is s3://BUCKET/TOPICS.DIR.

    \b
    Examples:
        keyfold log list s3://bucket/topics
        keyfold log describe s3://bucket/topics users
        keyfold log cat s3://bucket/topics users --partition 0 --from-offset 36
        keyfold log verify s3://bucket/topics users
    """  # noqa: D301 - click wants the character


@log.command("list")
@url_argument
@json_option
@click.pass_context
def list_logs(ctx: click.Context, url: str, *, as_json: bool) -> None:
    """List the logs below URL, one line a partition.

    A partition whose manifest cannot be read is listed with the reason.

    \b
    Example:
        keyfold log list s3://bucket/topics --json
    """  # noqa: D301 - click wants the character
    from keyfold.cli import show
    from keyfold.log import catalog
    from keyfold.read.log import Log

    world = ctx.find_object(Surroundings)
    assert world is not None
    store, topics_dir = open_store_of(ctx, url)

    def line(place: Place) -> str:
        topic_log = Log(store, topics_dir, place.topic, clock=world.clock, random=world.random)
        found = _manifest_or_error(topic_log, place.partition)
        if isinstance(found, KeyfoldError):
            return _error_line(place, found, as_json=as_json)
        return show.dumps(show.manifest_json(found)) if as_json else show.manifest_summary(found)

    with ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as pool:
        for text in pool.map(line, list(catalog.places(store, topics_dir))):
            echo(text)


@log.command()
@topic_arguments
@partition_option
@json_option
@click.pass_context
def describe(ctx: click.Context, url: str, topic: str, partition: int | None, *, as_json: bool) -> None:
    """Show offsets, segments, sizes, dirty ratio, epochs, gaps and settings.

    Of several partitions, one whose manifest cannot be read is shown with the reason. The others are shown all the
    same, and the exit code is 1.

    \b
    Example:
        keyfold log describe s3://bucket/topics users --partition 0
    """  # noqa: D301 - click wants the character
    from keyfold.cli import show

    target = open_target(ctx, url, topic, partition)
    bad: list[str] = []
    for number in target.partitions:
        is_alone = len(target.partitions) == 1
        found = target.log.manifest(number) if is_alone else _manifest_or_error(target.log, number)
        if isinstance(found, KeyfoldError):
            bad.append(str(target.log.place(number)))
            lines: Iterable[str] = [_error_line(target.log.place(number), found, as_json=as_json)]
        else:
            lines = [show.dumps(show.manifest_json(found))] if as_json else show.manifest_lines(found)
        for line in lines:
            echo(line)
    if bad:
        raise KeyfoldError(f"not described: {', '.join(bad)}", hint="the output says why, one line for each partition")


def _manifest_or_error(log: Log, partition: int) -> Manifest | KeyfoldError:
    """Return the newest manifest, or the error that is about this partition alone. Raise any other error."""
    try:
        return log.manifest(partition)
    except KeyfoldError as error:
        if not is_of_one_partition(error):
            raise
        return error


def _error_line(place: Place, error: KeyfoldError, *, as_json: bool) -> str:
    """Return the line in place of a partition's manifest."""
    from keyfold.cli import show

    kind = type(error).__name__
    if as_json:
        return show.dumps({"topic": place.topic, "partition": place.partition, "error": kind, "message": error.message})
    return f"{place}\t{kind}: {error.message}"


@log.command()
@topic_arguments
@partition_option
@click.option("--from-offset", type=click.IntRange(min=0), help="Begin here; a removed offset begins at the next.")
@click.option("--from-timestamp", type=Timestamp(), help="Begin at the first record not before this (ms or ISO-8601).")
@click.option("--to-offset", type=click.IntRange(min=0), help="End before this offset.")
@click.option("--latest", is_flag=True, help="Only the last record of each key, deleted keys left out.")
@click.option("--max-records", type=click.IntRange(min=0), help="End after so many records.")
@key_format_option
@value_format_option
@json_option
@click.pass_context
def cat(
    ctx: click.Context,
    /,
    url: str,
    topic: str,
    partition: int | None,
    from_offset: int | None,
    from_timestamp: int | None,
    to_offset: int | None,
    max_records: int | None,
    *,
    latest: bool,
    as_json: bool,
    **formats: str,
) -> None:
    """Print records, partition after partition, in offset order.

    With --json one object a line: topic, partition, offset, timestamp (ms), timestamp_type, key, value, headers. Bytes
    are a string where they are valid UTF-8, else {"base64": "..."}. Avro is read by the schemas kept beside the log.

    \b
    Examples:
        keyfold log cat s3://bucket/topics users --latest --json --value-format avro
        keyfold log cat s3://bucket/topics users -p 0 --from-timestamp 2026-01-31T12:00:00Z --max-records 10
    """  # noqa: D301 - click wants the character
    if from_offset is not None and from_timestamp is not None:
        raise click.UsageError("--from-offset and --from-timestamp exclude each other")
    if latest and not (from_offset is from_timestamp is to_offset is None):
        raise click.UsageError("--latest is about the whole log: it takes no offsets and no timestamp")
    target = open_target(ctx, url, topic, partition)

    def records() -> Iterator[tuple[int, Record]]:
        for number in target.partitions:
            found = (
                target.log.latest(number)
                if latest
                else target.log.read(
                    number, from_offset=from_offset, from_timestamp=from_timestamp, to_offset=to_offset
                )
            )
            yield from ((number, record) for record in found)

    printer = Printer(target.store, target.log.topics_dir, topic, formats)
    for number, record in islice(records(), max_records):
        echo(printer.json(number, record) if as_json else printer.line(number, record), flush=False)


@log.command()
@topic_arguments
@partition_option
@click.option("--indexes", is_flag=True, help="Indexes too.")
@json_option
@click.pass_context
def files(ctx: click.Context, url: str, topic: str, partition: int | None, *, indexes: bool, as_json: bool) -> None:
    """Print the objects that one version of the log is made of, for stock readers.

    A plain listing of the bucket also shows replaced segments and orphans; this list does not. The objects stay for
    file.delete.delay.ms after a later version replaced them.

    \b
    Example:
        keyfold log files s3://bucket/topics users --json
    """  # noqa: D301 - click wants the character
    from keyfold.cli import show

    target = open_target(ctx, url, topic, partition)
    for manifest in map(target.log.manifest, target.partitions):
        place = target.log.place(manifest.partition)
        segments = [f"{target.store.url}/{place.key(s.name)}" for s in manifest.segments]
        index_urls = [f"{target.store.url}/{place.key(s.index_name)}" for s in manifest.segments]
        if as_json:
            listed = {"topic": topic, "partition": manifest.partition, "version": manifest.version, "files": segments}
            echo(show.dumps({**listed, "indexes": index_urls} if indexes else listed))
            continue
        for line in (*segments, *(index_urls if indexes else ())):
            echo(line)
