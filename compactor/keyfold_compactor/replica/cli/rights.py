"""`keyfold replica enable-compaction` and `disable-compaction`: what the replica's own bucket says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from keyfold.terminal import echo, echo_json
from keyfold_compactor.replica.cli.places import PlaceType, book_of, open_one

if TYPE_CHECKING:
    from keyfold_compactor.replica.desk.documents import Enablement

F = TypeVar("F", bound=Callable[..., Any])


def _which(function: F) -> F:
    function = click.option("--json", "as_json", is_flag=True, help="One JSON object.")(function)
    function = click.option(
        "--replace-topics",
        is_flag=True,
        help="Remove the entries of single topics, so that this one holds for every topic.",
    )(function)
    function = click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="TOPIC",
        help="Only for this topic. Its entry takes precedence over the one for all topics, also over a later one.",
    )(function)
    function = click.argument("name", metavar="[NAME]", required=False)(function)
    return click.argument("place", metavar="PLACE", type=PlaceType())(function)


@click.command(
    short_help="Let compacted logs come to it.",
    epilog="Examples: keyfold replica enable-compaction s3://log-dr/topics --topic users, "
    "keyfold replica enable-compaction s3://log/topics dr",
)
@_which
@click.option(
    "--format",
    "format_version",
    type=click.IntRange(min=1),
    help="The newest log format that the replica's readers know. Left out: that of this keyfold.",
)
@click.pass_context
def enable_compaction(
    ctx: click.Context,
    place: str,
    name: str | None,
    topics: Sequence[str],
    format_version: int | None,
    *,
    replace_topics: bool,
    as_json: bool,
) -> None:
    """Let compacted logs come to a replica, for all topics or for some.

    Without --topic it holds for all topics but those that have an entry of their own, from an earlier --topic of this
    command or of disable-compaction. The output names them where they say otherwise; --replace-topics removes them.

    PLACE is the replica's own URL or configuration file; or the source's, with the NAME under which the replica is
    registered there. It is written into the replica's bucket. What waits for it goes on by itself, within a minute.
    """
    from keyfold.log.manifest_codec import FORMAT
    from keyfold_compactor.replica.desk.documents import ALL_TOPICS

    _require_all(topics, replace_topics=replace_topics)
    side = open_one(ctx, place, name)
    book = book_of(ctx, side)
    found = book.load()
    for topic in topics or (ALL_TOPICS,):
        found = book.enable(format_version or FORMAT, topic, is_only=replace_topics)
    again = f"keyfold replica enable-compaction {place}{f' {name}' if name else ''}"
    _tell(found, side.url, () if topics else found.exceptions(), again, as_json=as_json)


@click.command(
    short_help="Let none come any more.",
    epilog="Example: keyfold replica disable-compaction s3://log-dr/topics --topic users",
)
@_which
@click.pass_context
def disable_compaction(
    ctx: click.Context, place: str, name: str | None, topics: Sequence[str], *, replace_topics: bool, as_json: bool
) -> None:
    """Let no compacted log come to a replica any more. What has come stays, and is no longer brought up to date.

    Without --topic topics that have an entry of their own keep it, as with `keyfold replica enable-compaction`.

    PLACE and NAME are those of `keyfold replica enable-compaction`.
    """
    from keyfold_compactor.replica.desk.documents import ALL_TOPICS

    _require_all(topics, replace_topics=replace_topics)
    side = open_one(ctx, place, name)
    book = book_of(ctx, side)
    found = book.load()
    for topic in topics or (ALL_TOPICS,):
        before = found.compaction.get(topic)
        found = book.disable(before.format if before is not None else 0, topic, is_only=replace_topics)
    again = f"keyfold replica disable-compaction {place}{f' {name}' if name else ''}"
    _tell(found, side.url, () if topics else found.exceptions(), again, as_json=as_json)


def _require_all(topics: Sequence[str], *, replace_topics: bool) -> None:
    if topics and replace_topics:
        raise click.UsageError("--replace-topics is for all topics: leave out --topic")


def _tell(found: Enablement, url: str, kept: Sequence[str], again: str, *, as_json: bool) -> None:
    from keyfold_compactor.replica.cli.show import enablement_json, enablement_lines

    if as_json:
        echo_json(enablement_json(found, url, kept))
        return
    for line in enablement_lines(found, url, kept, again):
        echo(line)
