"""`keyfold log cat`: print records from a position, from the end, of one key, or as they are appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.log import OpenTopic, open_target
from keyfold.cli.log_options import (
    from_offset_option,
    from_timestamp_option,
    json_option,
    latest_option,
    partition_option,
    to_offset_option,
    topic_arguments,
)
from keyfold.cli.typed import Printer, key_format_option, value_format_option
from keyfold.runtime.terminal import echo

if TYPE_CHECKING:
    from keyfold.log.record import Record
    from keyfold.read.selection import Selection


@dataclass(frozen=True, slots=True)
class CatRequest:
    """The records to print."""

    from_offset: int | None
    from_timestamp: int | None
    to_offset: int | None
    tail: int | None
    key: str | None
    latest: bool
    follow: bool
    chosen: tuple[int, ...]


@click.command()
@topic_arguments
@partition_option
@from_offset_option
@from_timestamp_option
@to_offset_option
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Start at the last N records of each partition.")
@click.option("--key", metavar="KEY", help="Print only records with this key, written as the command prints it.")
@latest_option
@click.option("--follow", "-f", is_flag=True, help="At the end, wait for more records, until Ctrl-C.")
@click.option("--limit", "--max-records", "-n", "limit", type=click.IntRange(min=0), help="Stop after N records.")
@key_format_option
@value_format_option
@json_option
@click.pass_context
def cat(
    ctx: click.Context,
    /,
    url: str,
    topic: str,
    partition: tuple[int, ...],
    limit: int | None,
    *,
    as_json: bool,
    key_format: str,
    value_format: str,
    **asked: Any,
) -> None:
    """Print records, partition after partition, in offset order.

    With --json each line is an object with topic, partition, offset, timestamp (ms), timestamp_type, key, value and
    headers. Bytes are a string if they are valid UTF-8, otherwise {"base64": "..."}. Avro is decoded with the schemas
    stored beside the log.

    --tail reads only the end of a log. --key prints every record of the key that the log still has; with --key-format
    json or avro all keys are decoded to find it. With --follow, records of several partitions are mixed.

    \b
    Examples:
        keyfold log cat s3://bucket/topics users --latest --json --value-format avro
        keyfold log cat s3://bucket/topics users -p 0 --from-timestamp 2026-01-31T12:00:00Z --limit 10
        keyfold log cat s3://bucket/topics users --key user-42
        keyfold log cat s3://bucket/topics users --tail 10 --follow
    """  # noqa: D301 - click wants the character
    request = CatRequest(chosen=partition, **asked)
    _check(request)
    target = open_target(ctx, url, topic, partition)
    formats = {"key_format": key_format, "value_format": value_format}
    printer = Printer(target.store, target.log.topics_dir, topic, formats)
    keys = None if request.key is None or key_format in {"json", "avro"} else exact_keys(request.key)
    is_wanted = _filter(request.key, keys, printer)
    found = _followed(target, request, keys) if request.follow else _read(target, request, keys)
    for number, record in islice((each for each in found if is_wanted(*each)), limit):
        echo(printer.json(number, record) if as_json else printer.line(number, record), flush=request.follow)


def exact_keys(key: str) -> frozenset[bytes]:
    """Return the bytes that are printed as `key`: its UTF-8, and those of a hexadecimal `0x...`."""
    found = {key.encode(errors="surrogateescape")}
    if key.startswith("0x"):
        with suppress(ValueError):  # a text that only begins like a number
            found.add(bytes.fromhex(key[2:]))
    return frozenset(found)


def _check(asked: CatRequest) -> None:
    """Raise `UsageError` for options that exclude each other."""
    starts = [
        option
        for option, value in (
            ("--from-offset", asked.from_offset),
            ("--from-timestamp", asked.from_timestamp),
            ("--tail", asked.tail),
        )
        if value is not None
    ]
    if len(starts) > 1:
        raise click.UsageError(f"{starts[0]} and {starts[1]} cannot be combined")
    if asked.latest and (starts or asked.to_offset is not None):
        raise click.UsageError("--latest reads the whole log: it cannot be combined with a start or an end")
    if asked.follow and (asked.latest or asked.to_offset is not None):
        option = "--latest" if asked.latest else "--to-offset"
        raise click.UsageError(f"--follow never ends: it cannot be combined with {option}")
    if asked.tail is not None and (asked.key is not None or asked.to_offset is not None):
        option = "--key" if asked.key is not None else "--to-offset"
        raise click.UsageError(f"--tail counts all records up to the end: it cannot be combined with {option}")


def _filter(key: str | None, keys: frozenset[bytes] | None, printer: Printer) -> Callable[[int, Record], bool]:
    if key is None:
        return lambda _, __: True
    if keys is not None:
        return lambda _, record: record.key in keys
    return lambda number, record: printer.key_text(number, record) == key


def _selection(keys: frozenset[bytes] | None) -> Selection | None:
    from keyfold.read.selection import Selection

    return None if keys is None else Selection(keys=keys)


def _read(target: OpenTopic, asked: CatRequest, keys: frozenset[bytes] | None) -> Iterator[tuple[int, Record]]:
    """Yield the records of one partition after another. Segments and blocks without one of the keys are not fetched."""
    from keyfold.read.records import records_of

    log = target.log
    for number in target.partitions:
        start, to_offset = asked.from_offset, asked.to_offset
        if asked.tail is not None:
            start, to_offset = log.last_offsets(asked.tail, number)
        records: Iterator[Record]
        if asked.latest:
            records = iter(log.latest(number))
        elif keys is None:
            records = log.read(number, from_offset=start, from_timestamp=asked.from_timestamp, to_offset=to_offset)
        else:
            batches = log.batches(
                number,
                from_offset=start,
                from_timestamp=asked.from_timestamp,
                to_offset=to_offset,
                where=_selection(keys),
            )
            records = (record for batch in batches for record in records_of(batch))
        yield from ((number, record) for record in records)


def _followed(target: OpenTopic, asked: CatRequest, keys: frozenset[bytes] | None) -> Iterator[tuple[int, Record]]:
    """Yield the records of the partitions, and then those that are appended, until the command is interrupted."""
    starts: dict[int, int] = {}
    if asked.from_offset is not None:
        starts = dict.fromkeys(target.partitions, asked.from_offset)
    elif asked.tail is not None:
        starts = {number: target.log.last_offsets(asked.tail, number)[0] for number in target.partitions}
    return target.log.follow(
        asked.chosen or None,
        start=starts or "earliest",
        from_timestamp=asked.from_timestamp,
        where=_selection(keys),
    )
