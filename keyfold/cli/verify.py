"""`keyfold log verify` and `keyfold log repair`: verify logs, and recover lost manifests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

import click

from keyfold.cli.common_options import is_quiet
from keyfold.cli.context import world_of
from keyfold.cli.log import OpenTopic, open_target
from keyfold.cli.log_options import (
    bootstrap_servers_option,
    dry_run_option,
    json_option,
    kafka_config_option,
    partition_option,
    topic_arguments,
)
from keyfold.errors import KeyfoldError, is_of_one_partition
from keyfold.runtime.terminal import echo
from keyfold.runtime.text import count_text

if TYPE_CHECKING:
    from keyfold.log.names import Place
    from keyfold.verify.compare import Extent, TopicReader
    from keyfold.verify.findings import VerifyReport
    from keyfold.verify.repair import Base

_PARALLEL_MAX = 8


@click.command()
@topic_arguments
@partition_option
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=lambda: min(_PARALLEL_MAX, os.cpu_count() or 1),
    show_default="one per processor, at most 8",
    help="Number of segments to read at the same time, over all partitions.",
)
@click.option("--spark", "on_spark", is_flag=True, help="Read the segments with Spark; for large logs.")
@bootstrap_servers_option
@kafka_config_option
@click.option("--from-offset", type=click.IntRange(min=0), help="Compare with Kafka from this offset.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Compare with Kafka before this offset.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Compare only this share of the range with Kafka (0 to 1), in random windows of 10,000 offsets.",
)
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    url: str,
    topic: str,
    partition: tuple[int, ...],
    parallel: int,
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    from_offset: int | None,
    to_offset: int | None,
    sample: float,
    *,
    on_spark: bool,
    as_json: bool,
) -> None:
    """Read all of a log and verify it. The exit code is 1 if anything is damaged or cannot be verified.

    The command checks that every object exists with its checksum; that blocks and records can be read and match index
    and manifest; that offsets ascend and ranges are contiguous; that the clean part has each key once; and that no
    record is missing that objects replaced by a pass still have. Each damage is reported with object, block, record and
    offset, and with the records that are lost. Orphans and replaced objects are listed; they are not damage.

    A partition that cannot be verified is shown as `not-verified` with the reason: a newer keyfold wrote it, its folder
    has no log, or the right to read it is missing. The other partitions are verified. A replica cannot be verified
    before its first copy is complete.

    With --bootstrap-servers or --kafka-config the log is also compared with the topic. Records that both have must be
    equal. Records that only one of them has must be explained by compaction, retention or a gap.

    \b
    Examples:
        keyfold log verify s3://bucket/topics users
        keyfold log verify s3://bucket/topics users --partition 0 --json
        keyfold log verify s3://bucket/topics users --bootstrap-servers localhost:9092 --sample 0.05
    """  # noqa: D301 - click wants the character
    from keyfold.cli import output
    from keyfold.verify.compare import Extent, absent_partitions

    in_kafka = bootstrap_servers is not None or kafka_config is not None
    if not in_kafka and not (from_offset is to_offset is None and sample == 1.0):
        raise click.UsageError("--from-offset, --to-offset and --sample require --bootstrap-servers or --kafka-config")
    target = open_target(ctx, url, topic, partition)
    extent = Extent(from_offset or 0, to_offset, sample)
    damaged: list[str] = []
    incomplete: list[str] = []
    unjudged: list[str] = []
    with ExitStack() as stack:
        reader = stack.enter_context(_kafka_topic(bootstrap_servers, kafka_config, topic)) if in_kafka else None
        bars = stack.enter_context(_progress(topic, target))
        reports = _reports(ctx, target, parallel, reader, extent, bars, on_spark=on_spark)
        if reader is not None and not partition:
            reports = chain(reports, absent_partitions(target.log, target.partitions, reader))
        for report in reports:
            for line in [output.dumps(output.report_json(report))] if as_json else output.report_lines(report):
                echo(line)
            if report.damage:
                damaged.append(str(report.place))
            elif not report.is_sound:
                (incomplete if report.is_first_copy else unjudged).append(str(report.place))
    _require_sound(damaged, unjudged, incomplete)


def _require_sound(damaged: Sequence[str], unjudged: Sequence[str], incomplete: Sequence[str]) -> None:
    """Raise `KeyfoldError` that names the partitions which are damaged or not verified."""
    found: list[str] = []
    if damaged:
        found.append(f"damage found in {', '.join(damaged)}")
    if unjudged:
        found.append(f"not verified: {', '.join(unjudged)}")
    if incomplete:
        found.append(f"not verified, because the first copy of the replica is not complete: {', '.join(incomplete)}")
    if found:
        hint = "the findings above say what is lost" if damaged else "the findings above say why" if unjudged else None
        raise KeyfoldError("; ".join(found), hint=hint)


@contextmanager
def _kafka_topic(bootstrap_servers: str | None, config: Path | None, topic: str) -> Iterator[TopicReader]:
    from keyfold.kafka.settings import client_settings

    settings = client_settings(bootstrap_servers, config, owned=("isolation.level", "group.id", "auto.offset.reset"))
    from keyfold.kafka.reading import KafkaTopic

    with KafkaTopic(settings, topic) as reader:
        yield reader


def _reports(
    ctx: click.Context,
    target: OpenTopic,
    parallel: int,
    reader: TopicReader | None,
    extent: Extent,
    bars: _Bars,
    *,
    on_spark: bool,
) -> Iterator[VerifyReport]:
    """Yield a report for each partition, in order. Several partitions are read at the same time."""
    from keyfold.verify.compare import compare_partition
    from keyfold.verify.findings import unverified
    from keyfold.verify.partition import verify_partition

    world = world_of(ctx)
    clock, random = world.clock, world.random
    at_once = min(parallel, len(target.partitions))

    def verified(place: Place) -> VerifyReport:
        share = -(-parallel // at_once)
        try:
            return verify_partition(
                target.store, place, clock=clock, random=random, progress=bars.read_bytes, parallel=share
            )
        except KeyfoldError as error:
            if len(target.partitions) == 1 or not is_of_one_partition(error):
                raise
            return unverified(place, error)

    def compared(report: VerifyReport) -> VerifyReport:
        if reader is None or report.version < 0:
            return report
        found = compare_partition(
            target.log, report.place.partition, reader, random=random, extent=extent, progress=bars.compared
        )
        return replace(report, findings=(*report.findings, *found.findings), compared=found.compared)

    places = [target.log.place(number) for number in target.partitions]
    if on_spark:
        from keyfold.spark.verify import verify_on_spark

        for report in verify_on_spark(target.store, places, clock=clock, random=random):
            yield compared(report)
    else:
        with ThreadPoolExecutor(at_once, thread_name_prefix="partition") as pool:
            try:
                yield from pool.map(lambda place: compared(verified(place)), places)
            except BaseException:
                bars.stop()  # otherwise the pool waits until everything is read
                raise


@click.command()
@topic_arguments
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    required=True,
    help="Only this partition. Repeatable.",
)
@click.option(
    "--from",
    "base",
    type=click.Choice(["auto", "version", "segments"]),
    default="auto",
    show_default=True,
    help="Source of the new manifest: an older version of the object, in a bucket with versioning, or the segments.",
)
@click.option("--replace-damaged", is_flag=True, help="Replace a manifest that cannot be read, and keep a copy of it.")
@dry_run_option
@json_option
@click.pass_context
def repair(
    ctx: click.Context,
    url: str,
    topic: str,
    partitions: tuple[int, ...],
    base: Base,
    *,
    replace_damaged: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Recover a lost or damaged manifest. Stop the sink and the compactor of the partition first.

    In a bucket with versioning, the new manifest is made from the newest version that can be read and whose objects
    still exist, and from the segments that were appended since. Otherwise it is made from the segments alone. Then the
    compactor cleans everything again, and tombstones get a new delete horizon.

    The command refuses to replace an intact manifest. It also refuses a replica, because the replicator
    restores the manifest of a replica. With --from the replica becomes an independent log.

    \b
    Examples:
        keyfold log repair s3://bucket/topics users --partition 0 --dry-run
        keyfold log repair s3://bucket/topics users --partition 0 --replace-damaged --from segments
    """  # noqa: D301 - click wants the character
    from keyfold.cli import output
    from keyfold.store.wrappers.base import unwrapped
    from keyfold.verify.repair import apply_repair, plan_repair

    world = world_of(ctx)
    target = open_target(ctx, url, topic, partitions)
    clock, random = world.clock, world.random
    store = unwrapped(target.store)  # a bucket with versioning is recognized by its own methods
    for partition in target.partitions:
        place = target.log.place(partition)
        plan = plan_repair(store, place, clock=clock, random=random, base=base, replace_damaged=replace_damaged)
        if not dry_run:
            apply_repair(store, plan, clock=clock, random=random)
        document = output.repair_json(plan, dry_run=dry_run)
        for line in [output.dumps(document)] if as_json else output.repair_lines(plan, dry_run=dry_run):
            echo(line)


class _Stopped(Exception):
    """The command was interrupted."""


@dataclass(slots=True)
class _Bars:
    """Counts of what was read and compared, updated by several threads. After `stop` each update ends its thread."""

    on_bytes: Callable[[int], None] = lambda _: None
    on_compared: Callable[[int], None] = lambda _: None
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _compared: int = 0

    def read_bytes(self, n_bytes: int) -> None:
        """Count stored bytes that were read."""
        self._check()
        with self._lock:
            self.on_bytes(n_bytes)

    def compared(self, count: int) -> None:
        """Count records that were compared with Kafka."""
        self._check()
        with self._lock:
            self._compared += count
            self.on_compared(self._compared)

    def stop(self) -> None:
        """End each thread at its next update."""
        self._stop.set()

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


@contextmanager
def _progress(topic: str, target: OpenTopic) -> Iterator[_Bars]:
    """Show a bar on stderr if that is a terminal."""
    if is_quiet() or not sys.stderr.isatty():
        yield _Bars()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(f"verifying {topic}", total=_bytes_to_read(target))

        def compared(count: int) -> None:
            records = count_text(count, "record")
            bars.update(task, description=f"verifying {topic}, {records} compared with Kafka")

        yield _Bars(lambda n_bytes: bars.advance(task, n_bytes), compared)


def _bytes_to_read(target: OpenTopic) -> int:
    with ThreadPoolExecutor(_PARALLEL_MAX) as pool:
        return sum(pool.map(lambda number: _log_bytes(target, number), target.partitions))


def _log_bytes(target: OpenTopic, partition: int) -> int:
    try:
        return sum(s.size_bytes + s.index_size_bytes for s in target.log.manifest(partition).segments)
    except KeyfoldError:
        return 0  # the verification reports the reason
