"""`keyfold log get`: the last record of a key, or all that the log still has of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from keyfold.cli.cat import exact_keys
from keyfold.cli.log import open_target
from keyfold.cli.log_options import json_option, partition_option, topic_arguments
from keyfold.cli.typed import Printer, key_format_option, value_format_option
from keyfold.runtime.terminal import echo

if TYPE_CHECKING:
    from keyfold.log.record import Record
    from keyfold.read.lookup import Lookup


@click.command()
@topic_arguments
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@partition_option
@click.option("--history", is_flag=True, help="Print every record of the key that the log still has.")
@key_format_option
@value_format_option
@json_option
@click.pass_context
def get(
    ctx: click.Context,
    /,
    url: str,
    topic: str,
    keys: tuple[str, ...],
    partition: tuple[int, ...],
    *,
    history: bool,
    key_format: str,
    value_format: str,
    as_json: bool,
) -> None:
    """Print the last record of each KEY. Exit with 1 if a key has none, or its last record is a tombstone.

    KEY is written as `keyfold log cat` prints it: text, or 0x... for other bytes. With --json each line is an object as
    of `log cat`. The command reads indexes from the newest segment on until it finds the key.

    \b
    Examples:
        keyfold log get s3://bucket/topics users user-42
        keyfold log get s3://bucket/topics users user-42 user-43 --value-format avro --json
        keyfold log get s3://bucket/topics users user-42 --history
    """  # noqa: D301 - click wants the character
    target = open_target(ctx, url, topic, partition)
    formats = {"key_format": key_format, "value_format": value_format}
    printer = Printer(target.store, target.log.topics_dir, topic, formats)
    lookup = target.log.lookup(target.partitions)
    show = printer.json if as_json else printer.line
    is_found = True
    for key in keys:
        shown = False
        for number, record in _records(lookup, key, is_history=history):
            echo(show(number, record))
            shown = not record.is_tombstone
        if not shown:
            echo(f"error: `{key}` has no value up to {_ends(topic, lookup.next_offsets)}", err=True)
        is_found &= shown
    raise click.exceptions.Exit(0 if is_found else 1)


def _records(lookup: Lookup, key: str, *, is_history: bool) -> Iterator[tuple[int, Record]]:
    """Yield the records of all keys that are printed like this, with their partitions."""
    for data in sorted(exact_keys(key)):
        if is_history:
            yield from lookup.history(data)
            continue
        found = lookup.get(data)
        if found.record is not None and found.partition is not None:
            yield found.partition, found.record


def _ends(topic: str, next_offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{topic}-{number} offset {end:,}" for number, end in sorted(next_offsets.items()))
