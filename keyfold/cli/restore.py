"""`keyfold restore`: write a log back into a Kafka topic."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.common_options import is_quiet
from keyfold.cli.context import world_of
from keyfold.cli.log import open_store_of
from keyfold.cli.log_options import (
    LogUrl,
    Timestamp,
    bootstrap_servers_option,
    dry_run_option,
    json_option,
    kafka_config_option,
    latest_option,
    partition_option,
    topic_arguments,
)
from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.terminal import echo
from keyfold.runtime.text import count_text, size_text

if TYPE_CHECKING:
    from keyfold.restore.group_offsets import GroupOffset
    from keyfold.restore.run import Restore, RestoreOutcome, RestorePreview

Report = Callable[[int, int], None]


@click.command(context_settings={"max_content_width": 110})
@topic_arguments
@bootstrap_servers_option
@kafka_config_option
@click.option("--to-topic", metavar="NAME", help="Topic to write to. Default: the log's topic.")
@partition_option
@click.option("--to-offset", multiple=True, metavar="[PARTITION:]OFFSET", help="Stop before this offset of the log.")
@click.option("--to-timestamp", type=Timestamp(), help="Stop before the first record at or after this time.")
@click.option("--limit", "--max-records", "-n", "limit", type=click.IntRange(min=0),
              help="Write only the first N records of each partition.")  # fmt: skip
@latest_option
@click.option("--skip-keyless", is_flag=True, help="Omit records without a key.")
@click.option("--offset-header", metavar="NAME", help="Add a header with the record's offset in the log.")
@click.option("--append", is_flag=True, help="Write to a topic that has records, after them.")
@click.option("--continue", "goes_on", is_flag=True, help="Continue a finished restore to the log's current end.")
@click.option("--partitions", "partition_count", type=click.IntRange(min=1),
              help="Number of partitions of the topic, if the log's last ones never had records.")  # fmt: skip
@click.option("--topic-config", multiple=True, metavar="KEY=VALUE", help="Setting of the topic if it is created.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Replicas of the topic if it is created.")
@click.option("--max-records-per-second", type=click.FloatRange(min=0, min_open=True),
              help="Maximum rate over all partitions.")  # fmt: skip
@click.option("--max-bytes-per-second", type=click.FloatRange(min=0, min_open=True),
              help="Maximum rate over all partitions.")  # fmt: skip
@click.option("--parallel", "--at-once", "parallel", type=click.IntRange(min=1, max=64), default=4, show_default=True,
              help="Number of partitions to restore at the same time, each with its own producer.")  # fmt: skip
@click.option("--patience", "retry_timeout_s", type=click.FloatRange(min=0), default=600.0, show_default=True,
              help="Seconds without progress after which a partition fails.")  # fmt: skip
@click.option("--lease", "lease_s", type=click.FloatRange(min=1), default=30.0, show_default=True,
              help="Seconds after which another run may take over from a run that died.")  # fmt: skip
@click.option("--journal", metavar="URL", type=LogUrl(), help="Keep the journal under this URL, not beside the log.")
@click.option("--group-offsets", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Group offsets to translate, from kafka-consumer-groups.sh --reset-offsets --export.")  # fmt: skip
@click.option("--group-offsets-to", type=click.Path(dir_okay=False, path_type=Path),
              help="File for the translated offsets, for kafka-consumer-groups.sh --from-file.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Treat warnings as errors: write nothing.")
@dry_run_option
@json_option
@click.pass_context
def restore(ctx: click.Context, /, url: str, topic: str, **options: Any) -> None:
    """Write a log back into a Kafka topic.

    Every record is written once, with its key, value, headers and timestamp. If the topic exists, it must be empty and
    have as many partitions as the log. Otherwise it is created with the settings that the log has from its topic.

    A journal in the bucket records the progress. If a run is killed, run the same command again: it continues without
    repeating or losing a record. Nothing else may write to the topic meanwhile.

    \b
    Examples:
        keyfold restore s3://bucket/topics users --bootstrap-servers broker:9092 --dry-run
        keyfold restore s3://bucket/topics users -b broker:9092 --to-topic users-restored --latest
        keyfold restore s3://bucket/topics users -b broker:9092 --to-timestamp 2026-01-31T12:00:00Z
        keyfold restore s3://bucket/topics users -b broker:9092 --group-offsets old.csv --group-offsets-to new.csv
    """  # noqa: D301 - click wants the character
    if (options["group_offsets"] is None) != (options["group_offsets_to"] is None):
        raise click.UsageError("--group-offsets and --group-offsets-to must be given together")
    with _opened(ctx, url, topic, options) as one:
        outlook = one.preview()
        shown = _Shown(as_json=options["as_json"], topic=topic)
        shown.hazards(outlook)
        if options["dry_run"]:
            shown.outlook(outlook)
            if outlook.errors:
                errors = count_text(len(outlook.errors), "error")
                raise KeyfoldError(f"the restore would fail with {errors}", hint="nothing was written")
            return
        rows = _group_rows(options["group_offsets"])
        outcome = _run(one, outlook)
        shown.outcome(outcome)
        if outcome.failures:
            partition, error = min(outcome.failures.items())
            raise KeyfoldError(f"partition {partition} is not restored: {error.message}", hint=error.hint)
        if rows is not None:
            shown.group_offsets(one, rows, options["group_offsets_to"])


@contextmanager
def _opened(ctx: click.Context, url: str, topic: str, options: Mapping[str, Any]) -> Iterator[Restore]:
    from keyfold.kafka.settings import client_settings
    from keyfold.read.log import Log
    from keyfold.restore.pace import Pace
    from keyfold.restore.run import Restore

    world = world_of(ctx)
    request = _request(topic, options)
    from keyfold.kafka.cluster import KafkaCluster
    from keyfold.restore.kafka_target import OWNED, KafkaTopics

    settings = client_settings(options["bootstrap_servers"], options["kafka_config"], owned=OWNED)
    pace = Pace(
        world.clock, records_per_s=options["max_records_per_second"], bytes_per_s=options["max_bytes_per_second"]
    )
    store, topics_dir = open_store_of(ctx, url)
    journal_store, journal_dir = (
        (store, topics_dir) if not options["journal"] else open_store_of(ctx, options["journal"])
    )
    log = Log(store, topics_dir, topic, clock=world.clock, random=world.random)
    with KafkaCluster(settings) as cluster:
        yield Restore(
            log, KafkaTopics(cluster), request, clock=world.clock, random=world.random,
            holder=f"{platform.node()}, process {os.getpid()}",
            journal_store=journal_store, journal_dir=journal_dir, pace=pace,
        )  # fmt: skip


def _request(topic: str, options: Mapping[str, Any]) -> Any:
    from keyfold.log.names import is_topic_name
    from keyfold.restore.partition import RestoreSettings
    from keyfold.restore.run import RestoreRequest
    from keyfold.restore.selection import RestoreSelection, parse_to_offsets

    target = options["to_topic"] or topic
    if not is_topic_name(target):
        raise ConfigError(
            "--to-topic",
            f"{target!r} is not a valid topic name",
            hint="a name has 1 to 249 letters, digits, `.`, `_` and `-`",
        )
    return RestoreRequest(
        target=target,
        selection=RestoreSelection(
            parse_to_offsets(options["to_offset"]),
            options["to_timestamp"],
            options["limit"],
            options["latest"],
            options["skip_keyless"],
        ),
        settings=RestoreSettings(
            offset_header=options["offset_header"], append=options["append"], retry_timeout_s=options["retry_timeout_s"]
        ),
        partitions=options["partition"],
        partition_count=options["partition_count"],
        topic_config=_topic_config(options["topic_config"]),
        replication_factor=options["replication_factor"] or -1,
        at_once=options["parallel"],
        goes_on=options["goes_on"],
        strict=options["strict"],
        lease_s=options["lease_s"],
    )


def _topic_config(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError("--topic-config", f"{text!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _group_rows(path: Path | None) -> list[GroupOffset] | None:
    from keyfold.restore.group_offsets import parse_offsets

    return None if path is None else parse_offsets(path.read_text(encoding="utf-8"), str(path))


def _run(one: Restore, outlook: RestorePreview) -> RestoreOutcome:
    """Run the restore with a bar on stderr if that is a terminal. After an interrupt the next run can continue."""
    with _bar(outlook) as report:
        try:
            return one.run(outlook, report)
        except KeyboardInterrupt:
            one.stop()
            raise


@contextmanager
def _bar(outlook: RestorePreview) -> Iterator[Report]:
    if is_quiet() or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    title = f"restoring into {outlook.topic.name}"
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=outlook.records_left)
        yield lambda _, records: bars.advance(task, records)


class _Shown:
    """The output of the command: results on stdout, warnings and errors of the plan on stderr (stdout with --json)."""

    def __init__(self, *, as_json: bool, topic: str) -> None:
        self._as_json = as_json
        self._topic = topic

    def hazards(self, outlook: RestorePreview) -> None:
        for hazard in outlook.hazards:
            if self._as_json:
                self._line({"type": "hazard", **hazard.to_json()})
            else:
                echo(f"{'error' if hazard.is_error else 'warning'}: {hazard}", err=True)

    def outlook(self, outlook: RestorePreview) -> None:
        topic = outlook.topic
        made = "exists" if topic.exists else "would be created"
        if not self._as_json:
            echo(f"topic {topic.name} {made}, with {count_text(topic.partitions, 'partition')}")
        for survey in outlook.surveys:
            landed = outlook.landed.get(survey.partition, 0)
            data = {
                "type": "plan", "topic": self._topic, "partition": survey.partition, "target": topic.name,
                "target_exists": topic.exists, "records": survey.records, "record_bytes": survey.record_bytes,
                "source_end": survey.end, "landed": landed, "min_timestamp": survey.min_timestamp,
                "max_timestamp": survey.max_timestamp,
            }  # fmt: skip
            there = f", {landed:,} of them already written" if landed else ""
            self._line(
                data,
                f"partition {survey.partition}: {count_text(survey.records, 'record')} below offset {survey.end}, "
                f"{size_text(survey.record_bytes)} before compression{there}",
            )
        for result in outlook.finished:
            self._line(
                {"type": "finished", "partition": result.partition, "records": result.records},
                f"partition {result.partition}: finished, {count_text(result.records, 'record')}",
            )

    def outcome(self, outcome: RestoreOutcome) -> None:
        for result in outcome.results:
            data = {
                "type": "restored", "topic": self._topic, "partition": result.partition, "records": result.records,
                "written": result.wrote, "first_offset": result.first_offset, "next_offset": result.next_offset,
                "source_end": result.source_end, "log_end": result.log_end, "was_finished": result.was_finished,
            }  # fmt: skip
            where = f"offsets {result.first_offset} to {result.next_offset - 1}" if result.records else "nothing"
            done = "already finished, nothing was written" if result.was_finished else f"{result.wrote:,} written now"
            behind = (
                f"; the log now ends at offset {result.log_end}: run with --continue to restore the rest"
                if result.was_finished and result.log_end > result.source_end
                else ""
            )
            records = count_text(result.records, "record")
            self._line(data, f"partition {result.partition}: {records}, {where}; {done}{behind}")
        for partition, error in sorted(outcome.failures.items()):
            if self._as_json:
                self._line({"type": "failed", "partition": partition, "error": error.message, "hint": error.hint})
            else:
                echo(f"error: partition {partition}: {error}", err=True)

    def group_offsets(self, one: Restore, rows: list[GroupOffset], path: Path) -> None:
        from keyfold.restore.group_offsets import format_offsets

        found, others = one.translate(rows)
        path.write_text(format_offsets(found), encoding="utf-8")
        self._line(
            {"type": "group_offsets", "file": str(path), "rows": len(found), "left_out": len(others)},
            f"group offsets: {len(found)} written to {path}"
            + (f", {len(others)} of other topics omitted" if others else ""),
        )

    def _line(self, data: dict[str, Any], text: str = "") -> None:
        from keyfold.cli import output

        echo(output.dumps(data) if self._as_json else text)
