"""Arguments and options that several commands about logs share: the same names, types and texts everywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from keyfold.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])


class Timestamp(click.ParamType[int]):
    """Milliseconds since the epoch, or ISO-8601 (UTC without a zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in ms."""
        if isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time: give milliseconds or ISO-8601 such as 2026-01-31T12:00:00Z", param, ctx
            )
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)


class LogUrl(click.ParamType[str]):
    """`s3://<bucket>/<topics.dir>`."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the URL and return it as it was given."""
        from keyfold.store.location import parse_url

        try:
            parse_url(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        return str(value)


url_argument = click.argument("url", metavar="URL", type=LogUrl())
_topic_argument = click.argument("topic", metavar="TOPIC")


def topic_arguments(function: F) -> F:
    """Add the arguments URL and TOPIC."""
    named: F = _topic_argument(function)
    with_url: F = url_argument(named)
    return with_url


partition_option = click.option(
    "--partition", "-p", type=click.IntRange(min=0), multiple=True, help="Only this partition. Repeatable."
)
partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition. Repeatable.",
)
topics_option = click.option(
    "--topic", "-t", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
document_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
latest_option = click.option("--latest", is_flag=True, help="Only the last record of each key, without deleted keys.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done; write nothing.")
from_offset_option = click.option(
    "--from-offset", type=click.IntRange(min=0), help="Start at this offset, or at the next one if it was removed."
)
from_timestamp_option = click.option(
    "--from-timestamp", type=Timestamp(), help="Start at the first record at or after this time (ms or ISO-8601)."
)
to_offset_option = click.option("--to-offset", type=click.IntRange(min=0), help="Stop before this offset.")
bootstrap_servers_option = click.option(
    "--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="Kafka brokers. Takes precedence over --kafka-config."
)
kafka_config_option = click.option(
    "--kafka-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings of the Kafka client, .properties or JSON, as for Kafka's own tools.",
)
