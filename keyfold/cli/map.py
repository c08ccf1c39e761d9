"""`keyfold log map`: a picture of logs, as one HTML file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import world_of
from keyfold.cli.log import MANIFESTS_AT_ONCE, manifest_or_error, open_store_of, places_of
from keyfold.cli.log_options import url_argument
from keyfold.errors import KeyfoldError, is_of_one_partition
from keyfold.runtime.terminal import echo
from keyfold.runtime.text import count_text

if TYPE_CHECKING:
    from keyfold.cli.log_map import MappedLog
    from keyfold.log.names import Place
    from keyfold.read.log import Log


@click.command(name="map")
@url_argument
@click.argument("topic", metavar="[TOPIC]", required=False)
@click.option(
    "--html",
    "path",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="The file to write. An existing file is replaced.",
)
@click.option("--exact", is_flag=True, help="Count superseded records. This reads the indexes.")
@click.pass_context
def map_logs(ctx: click.Context, url: str, topic: str | None, path: Path, *, exact: bool) -> None:
    """Draw the segments of all logs, or of one topic, as one HTML file without scripts, for example for a ticket.

    Each partition is a strip of its segments in offset order, as wide as their stored bytes: clean and dirty part,
    tombstones, gaps, and how far replicas have received the log. A partition that cannot be read is named with the
    reason, and the exit code is 1.

    \b
    Examples:
        keyfold log map s3://bucket/topics --html logs.html
        keyfold log map s3://bucket/topics users --html users.html --exact
    """  # noqa: D301 - click wants the character
    from keyfold.cli.log_map import page
    from keyfold.read.log import Log

    world = world_of(ctx)
    store, topics_dir = open_store_of(ctx, url)
    places = places_of(ctx, store, topics_dir, topic)
    logs = {name: Log(store, topics_dir, name, clock=world.clock) for name in {place.topic for place in places}}
    with ThreadPoolExecutor(MANIFESTS_AT_ONCE) as pool:
        maps = list(pool.map(lambda place: mapped(logs[place.topic], place, is_exact=exact), places))
    text = page(f"{store.url}/{topics_dir}".rstrip("/"), maps, now_ms=world.clock.now_ms())
    path.write_text(text, encoding="utf-8")
    bad = [str(each.place) for each in maps if each.error]
    echo(f"wrote {path}: {count_text(len(maps), 'partition')}")
    if bad:
        raise KeyfoldError(f"not drawn: {', '.join(bad)}", hint="the page has the reasons")


def mapped(log: Log, place: Place, *, is_exact: bool) -> MappedLog:
    """Read what is drawn of a partition; `is_exact` counts superseded records. What cannot be read has the reason."""
    from keyfold.cli.log_map import MappedLog
    from keyfold.cli.segment_strip import is_compacted_topic
    from keyfold.read.latest import count_superseded

    found = manifest_or_error(log, place.partition)
    if isinstance(found, KeyfoldError):
        return MappedLog(place, None, error=str(found))
    if not is_exact or not is_compacted_topic(found):
        return MappedLog(place, found)
    try:
        manifest, garbage = count_superseded(log.store, place, lambda: log.manifest(place.partition))
    except KeyfoldError as error:
        if not is_of_one_partition(error):
            raise
        return MappedLog(place, None, error=str(error))
    return MappedLog(place, manifest, garbage=garbage)
