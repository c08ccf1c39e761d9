"""`keyfold log`: list and describe logs. `keyfold.cli.cat`, `verify` and `export` add their commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import CliContext, world_of
from keyfold.cli.log_options import json_option, partition_option, topic_arguments, url_argument
from keyfold.errors import KeyfoldError, is_of_one_partition
from keyfold.runtime.log_level import asked_level
from keyfold.runtime.terminal import echo

if TYPE_CHECKING:
    from keyfold.log.manifest import Manifest
    from keyfold.log.names import Place
    from keyfold.read.log import Log
    from keyfold.store.api import ObjectStore

MANIFESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """An open topic, and the partitions that the command is about."""

    store: ObjectStore
    log: Log
    partitions: tuple[int, ...]


def open_store_of(ctx: click.Context, url: str) -> tuple[ObjectStore, str]:
    """Open the store of a URL, to be closed when the command ends; return it and the topics.dir."""
    world = world_of(ctx)
    store, topics_dir = world.open_store(url)
    ctx.call_on_close(getattr(store, "close", None) or (lambda: None))
    return _with_request_log(store, world), topics_dir


def _with_request_log(store: ObjectStore, world: CliContext) -> ObjectStore:
    """Set up logging if the command line asks for a level; with debug, return a store that logs its requests."""
    level = asked_level(os.environ)
    if level is None:
        return store
    from keyfold.cli.request_log import RequestLog
    from keyfold.runtime.event_log import configure

    configure(json=False, level=level)
    return RequestLog(store, world.clock) if level == "debug" else store


def open_target(ctx: click.Context, url: str, topic: str, chosen: Sequence[int]) -> OpenTopic:
    """Open the topic under a URL, with the chosen partitions; none chosen: all."""
    from keyfold.read.log import Log

    world = world_of(ctx)
    store, topics_dir = open_store_of(ctx, url)
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    return OpenTopic(store, log, tuple(sorted(set(chosen)) or log.partitions()))


@click.group(context_settings={"max_content_width": 110})
def log() -> None:
    """List, read, export, verify and repair the logs in a bucket.

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
@click.argument("topic", metavar="[TOPIC]", required=False)
@click.option("--partitions", "by_partition", is_flag=True, help="Print one row per partition.")
@json_option
@click.pass_context
def list_logs(ctx: click.Context, url: str, topic: str | None, *, by_partition: bool, as_json: bool) -> None:
    """List the logs under URL, one row per topic. With TOPIC, list the partitions of that topic.

    OFFSETS counts the offsets from log start to log end, RECORDS those that are left. DIRTY is the share of the stored
    bytes that has not been compacted. A partition whose manifest cannot be read is reported below the table.

    \b
    Examples:
        keyfold log list s3://bucket/topics
        keyfold log list s3://bucket/topics users
        keyfold log list s3://bucket/topics --partitions --json
    """  # noqa: D301 - click wants the character
    from keyfold.cli import output
    from keyfold.cli.log_table import ListedLog, LogFigures, table_of_partitions, table_of_topics
    from keyfold.read.log import Log

    world = world_of(ctx)
    store, topics_dir = open_store_of(ctx, url)

    def manifest(place: Place) -> Manifest | KeyfoldError:
        topic_log = Log(store, topics_dir, place.topic, clock=world.clock, random=world.random)
        return manifest_or_error(topic_log, place.partition)

    def line(place: Place) -> str:
        found = manifest(place)
        if isinstance(found, KeyfoldError):
            return _error_line(place, found, as_json=True)
        return output.dumps(output.manifest_json(found))

    def listed(place: Place) -> ListedLog:
        found = manifest(place)
        return ListedLog(place, found if isinstance(found, KeyfoldError) else LogFigures.of(found))

    places = places_of(ctx, store, topics_dir, topic)
    with ThreadPoolExecutor(MANIFESTS_AT_ONCE) as pool:
        if as_json:
            for text in pool.map(line, places):
                echo(text)
        elif places:
            table = table_of_partitions if by_partition or topic is not None else table_of_topics
            for text in table(list(pool.map(listed, places))):
                echo(text)


def places_of(ctx: click.Context, store: ObjectStore, topics_dir: str, topic: str | None) -> list[Place]:
    """Return the partitions to list. Without any, say so."""
    from keyfold.log import catalog
    from keyfold.read.log import Log

    world = world_of(ctx)
    if topic is not None:
        log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
        return [log.place(number) for number in log.partitions()]
    places = list(catalog.places(store, topics_dir))
    if not places:
        near = catalog.logs_near(store, topics_dir)
        echo(f"no logs under `{store.url}/{topics_dir}`".replace("/`", "`"), err=True)
        if near is not None:
            echo(f"hint: did you mean `{store.url}/{near}`?", err=True)
    return places


@log.command()
@topic_arguments
@partition_option
@click.option("--exact", is_flag=True, help="Count superseded records. This reads the indexes.")
@json_option
@click.pass_context
def describe(
    ctx: click.Context, url: str, topic: str, partition: tuple[int, ...], *, exact: bool, as_json: bool
) -> None:
    """Show offsets, segments, sizes, dirty ratio, epochs, gaps and settings, and draw the segments.

    The strip has the segments in offset order, as wide as their stored bytes. Letters below it show segments with
    tombstones: `t` not yet marked by a pass, `m` marked, `p` purgeable: marked for longer than the topic's
    delete.retention.ms, so that the next pass removes them. The manifest tells how many superseded records there are at
    most; --exact counts them. Topics that are not compacted have no dirty part.

    If there are several partitions and the manifest of one cannot be read, that partition is shown with the reason, the
    others are shown as usual, and the exit code is 1.

    \b
    Examples:
        keyfold log describe s3://bucket/topics users --partition 0
        keyfold log describe s3://bucket/topics users --exact --json
    """  # noqa: D301 - click wants the character
    target = open_target(ctx, url, topic, partition)
    bad: list[str] = []
    for number in target.partitions:
        try:
            found = _described(ctx, target, number, exact=exact, as_json=as_json)
        except KeyfoldError as error:
            if len(target.partitions) == 1 or not is_of_one_partition(error):
                raise
            place = target.log.place(number)
            bad.append(str(place))
            found = [_error_line(place, error, as_json=as_json)]
        for line in found:
            echo(line)
    if bad:
        raise KeyfoldError(f"not described: {', '.join(bad)}", hint="the output has the reason, one line per partition")


def _described(ctx: click.Context, target: OpenTopic, number: int, *, exact: bool, as_json: bool) -> Iterable[str]:
    """Return what is known of one partition, as lines."""
    from keyfold.cli import output
    from keyfold.cli.segment_strip import is_compacted_topic, signs_for, strip_lines
    from keyfold.read.latest import count_superseded

    world = world_of(ctx)
    log, place = target.log, target.log.place(number)
    manifest, garbage = log.manifest(number), None
    if exact and is_compacted_topic(manifest):
        manifest, garbage = count_superseded(target.store, place, lambda: log.manifest(number))
    total = None if garbage is None else sum(garbage)
    if as_json:
        row = output.manifest_json(manifest)
        return [output.dumps(row if total is None else {**row, "garbage_records": total})]
    strip = strip_lines(
        manifest,
        now_ms=world.clock.now_ms(),
        width=get_terminal_size().columns - output.ROW_INDENT,
        signs=signs_for(sys.stdout.encoding),
        garbage=garbage,
    )
    return output.manifest_lines(manifest, strip, total)


def manifest_or_error(log: Log, partition: int) -> Manifest | KeyfoldError:
    """Return the newest manifest, or the error if it concerns this partition only. Raise any other error."""
    try:
        return log.manifest(partition)
    except KeyfoldError as error:
        if not is_of_one_partition(error):
            raise
        return error


def _error_line(place: Place, error: KeyfoldError, *, as_json: bool) -> str:
    """Return the line in place of a partition's manifest."""
    from keyfold.cli import output

    kind = type(error).__name__
    if as_json:
        return output.dumps(
            {"topic": place.topic, "partition": place.partition, "error": kind, "message": error.message}
        )
    return f"{place}\t{kind}: {error.message}"


@log.command()
@topic_arguments
@partition_option
@click.option("--indexes", is_flag=True, help="Also print the indexes.")
@json_option
@click.pass_context
def files(
    ctx: click.Context, url: str, topic: str, partition: tuple[int, ...], *, indexes: bool, as_json: bool
) -> None:
    """Print the URLs of the log's current segments, for other readers of Avro files.

    A listing of the bucket also has replaced segments and orphans; this list does not. Each object stays for
    file.delete.delay.ms after a later version has replaced it.

    \b
    Example:
        keyfold log files s3://bucket/topics users --json
    """  # noqa: D301 - click wants the character
    from keyfold.cli import output

    target = open_target(ctx, url, topic, partition)
    for manifest in map(target.log.manifest, target.partitions):
        place = target.log.place(manifest.partition)
        segments = [f"{target.store.url}/{place.key(s.name)}" for s in manifest.segments]
        index_urls = [f"{target.store.url}/{place.key(s.index_name)}" for s in manifest.segments]
        if as_json:
            listed = {"topic": topic, "partition": manifest.partition, "version": manifest.version, "files": segments}
            echo(output.dumps({**listed, "indexes": index_urls} if indexes else listed))
            continue
        for line in (*segments, *(index_urls if indexes else ())):
            echo(line)
