"""`keyfold replica enable-compaction` and `disable-compaction`: the permission in the replica's own bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from keyfold.cli.log_options import document_json_option
from keyfold.runtime.terminal import echo, echo_json
from keyfold_replicator.cli.locations import PlaceType, enablement_store_of, open_one

if TYPE_CHECKING:
    from keyfold.replicas.documents import Enablement

F = TypeVar("F", bound=Callable[..., object])


def _which(function: F) -> F:
    function = document_json_option(function)
    function = click.option(
        "--replace-topics",
        is_flag=True,
        help="Remove the entries of single topics, so that the new entry applies to every topic.",
    )(function)
    function = click.option(
        "--topic",
        "-t",
        "topics",
        multiple=True,
        metavar="TOPIC",
        help="Only this topic. Its entry takes precedence over any entry for all topics, even a later one. Repeatable.",
    )(function)
    function = click.argument("name", metavar="[NAME]", required=False)(function)
    return click.argument("place", metavar="PLACE", type=PlaceType())(function)


@click.command(
    short_help="Accept compacted logs at a replica.",
    epilog="Examples: keyfold replica enable-compaction s3://log-dr/topics --topic users, "
    "keyfold replica enable-compaction s3://log/topics dr",
)
@_which
@click.option(
    "--format",
    "format_version",
    type=click.IntRange(min=1),
    help="Newest log format that the replica's readers know. Default: that of this keyfold.",
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
    """Accept compacted logs at a replica, for all topics or for some.

    Without --topic the command applies to all topics except those with an entry of their own, from an earlier --topic
    of this command or of disable-compaction. If such entries say otherwise, the output names their topics;
    --replace-topics removes the entries.

    PLACE is the replica's own URL or configuration file; or the source's, with the NAME of the registered replica. The
    permission is saved in the replica's bucket. Partitions that wait for it continue by themselves within a minute.
    """
    from keyfold.log.manifest_codec import FORMAT
    from keyfold.replicas.documents import ALL_TOPICS

    _require_all(topics, replace_topics=replace_topics)
    side = open_one(ctx, place, name)
    enablement_store = enablement_store_of(ctx, side)
    found = enablement_store.load()
    for topic in topics or (ALL_TOPICS,):
        found = enablement_store.enable(format_version or FORMAT, topic, is_only=replace_topics)
    again = f"keyfold replica enable-compaction {place}{f' {name}' if name else ''}"
    _tell(found, side.url, () if topics else found.exceptions(), again, as_json=as_json)


@click.command(
    short_help="Stop accepting compacted logs.",
    epilog="Example: keyfold replica disable-compaction s3://log-dr/topics --topic users",
)
@_which
@click.pass_context
def disable_compaction(
    ctx: click.Context, place: str, name: str | None, topics: Sequence[str], *, replace_topics: bool, as_json: bool
) -> None:
    """Stop accepting compacted logs at a replica. The replica keeps what it has and receives no more updates of them.

    Without --topic, topics with an entry of their own keep it, as with `keyfold replica enable-compaction`.

    PLACE and NAME are as in `keyfold replica enable-compaction`.
    """
    from keyfold.replicas.documents import ALL_TOPICS

    _require_all(topics, replace_topics=replace_topics)
    side = open_one(ctx, place, name)
    enablement_store = enablement_store_of(ctx, side)
    found = enablement_store.load()
    for topic in topics or (ALL_TOPICS,):
        before = found.compaction.get(topic)
        found = enablement_store.disable(before.format if before is not None else 0, topic, is_only=replace_topics)
    again = f"keyfold replica disable-compaction {place}{f' {name}' if name else ''}"
    _tell(found, side.url, () if topics else found.exceptions(), again, as_json=as_json)


def _require_all(topics: Sequence[str], *, replace_topics: bool) -> None:
    if topics and replace_topics:
        raise click.UsageError("--replace-topics applies to all topics and cannot be combined with --topic")


def _tell(found: Enablement, url: str, kept: Sequence[str], again: str, *, as_json: bool) -> None:
    from keyfold_replicator.cli.show import enablement_json, enablement_lines

    if as_json:
        echo_json(enablement_json(found, url, kept))
        return
    for line in enablement_lines(found, url, kept, again):
        echo(line)
