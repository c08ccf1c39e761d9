"""`keyfold log verify` and `keyfold log repair`: prove logs, bring lost manifests back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.app import Surroundings
from keyfold.cli.log import Target, json_option, open_target, partition_option, topic_arguments
from keyfold.errors import KeyfoldError, is_of_one_partition
from keyfold.terminal import echo

if TYPE_CHECKING:
    from keyfold.log.names import Place
    from keyfold.read.compare import Extent, TopicReader
    from keyfold.read.findings import VerifyReport
    from keyfold.read.repair import Base

_PARALLEL_MAX = 8


@click.command()
@topic_arguments
@partition_option
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=lambda: min(_PARALLEL_MAX, os.cpu_count() or 1),
    show_default="one per processor, at most 8",
    help="How many segments are read at a time, over all partitions.",
)
@click.option("--spark", "on_spark", is_flag=True, help="Read the segments on Spark; for large logs.")
@click.option("--bootstrap-servers", help="Compare with the topic in this cluster: host:port[,host:port...].")
@click.option(
    "--kafka-config",
    type=click.Path(exists=True, dir_okay=False),
    help="Settings of the Kafka client: .properties or JSON. Compares, too, where it names bootstrap.servers.",
)
@click.option("--from-offset", type=click.IntRange(min=0), help="Compare with Kafka from this offset on.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Compare with Kafka up to this offset, exclusive.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Compare with Kafka only this part of the range, in windows of 10,000 offsets at random places.",
)
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    url: str,
    topic: str,
    partition: int | None,
    parallel: int,
    bootstrap_servers: str | None,
    kafka_config: str | None,
    from_offset: int | None,
    to_offset: int | None,
    sample: float,
    *,
    on_spark: bool,
    as_json: bool,
) -> None:
    """Read the log back and prove it; exit code 1 when anything is damaged.

    Everything is read once: every object is there with its checksum, blocks and records can be read and agree with
    index and manifest, offsets ascend and ranges meet, nothing superseded is below the first dirty offset, and nothing
    is gone that objects which a pass replaced still have. Damage is named by object, block, record and offset, with
    what is lost by it. Orphans and replaced objects are listed; they are no damage. A replica whose first copy is not
    complete cannot be verified yet: exit code 1, too.

    A partition that cannot be judged (written by a newer keyfold, no log in its folder, no right to read it) is shown
    as `not-verified` with the reason. The others are verified all the same, and the exit code is 1.

    With --bootstrap-servers the log is also held against the topic: what both have must be equal, and what one side has
    alone must be explained by compaction, retention or a gap.

    \b
    Examples:
        keyfold log verify s3://bucket/topics users
        keyfold log verify s3://bucket/topics users --partition 0 --json
        keyfold log verify s3://bucket/topics users --bootstrap-servers localhost:9092 --sample 0.05
    """  # noqa: D301 - click wants the character
    from keyfold.cli import show
    from keyfold.read.compare import Extent, absent_partitions

    in_kafka = bootstrap_servers is not None or kafka_config is not None
    if not in_kafka and not (from_offset is to_offset is None and sample == 1.0):
        raise click.UsageError("--from-offset, --to-offset and --sample are about --bootstrap-servers")
    target = open_target(ctx, url, topic, partition)
    extent = Extent(from_offset or 0, to_offset, sample)
    damaged: list[str] = []
    incomplete: list[str] = []
    unjudged: list[str] = []
    with ExitStack() as stack:
        reader = stack.enter_context(_kafka_topic(bootstrap_servers, kafka_config, topic)) if in_kafka else None
        bars = stack.enter_context(_progress(topic, target))
        reports = _reports(ctx, target, parallel, reader, extent, bars, on_spark=on_spark)
        if reader is not None and partition is None:
            reports = chain(reports, absent_partitions(target.log, target.partitions, reader))
        for report in reports:
            for line in [show.dumps(show.report_json(report))] if as_json else show.report_lines(report):
                echo(line)
            if report.damage:
                damaged.append(str(report.place))
            elif not report.is_sound:
                (incomplete if report.is_first_copy else unjudged).append(str(report.place))
    _require_sound(damaged, unjudged, incomplete)


def _require_sound(damaged: Sequence[str], unjudged: Sequence[str], incomplete: Sequence[str]) -> None:
    """Raise `KeyfoldError` that names the partitions which are not proven to be sound."""
    found: list[str] = []
    if damaged:
        found.append(f"damage found in {', '.join(damaged)}")
    if unjudged:
        found.append(f"not verified: {', '.join(unjudged)}")
    if incomplete:
        found.append(f"not verified, for a replica's first copy is not complete: {', '.join(incomplete)}")
    if found:
        hint = "the findings above say what is lost" if damaged else "the findings above say why" if unjudged else None
        raise KeyfoldError("; ".join(found), hint=hint)


@contextmanager
def _kafka_topic(bootstrap_servers: str | None, config: str | None, topic: str) -> Iterator[TopicReader]:
    from keyfold.kafka.settings import client_settings

    settings = client_settings(bootstrap_servers, config, owned=("isolation.level", "group.id", "auto.offset.reset"))
    from keyfold.kafka.topic_reader import KafkaTopic

    with KafkaTopic(settings, topic) as reader:
        yield reader


def _reports(
    ctx: click.Context,
    target: Target,
    parallel: int,
    reader: TopicReader | None,
    extent: Extent,
    bars: _Bars,
    *,
    on_spark: bool,
) -> Iterator[VerifyReport]:
    """A report for each partition, in order; several partitions are read at a time."""
    from keyfold.read.compare import compare_partition
    from keyfold.read.findings import unverified
    from keyfold.read.verify import verify_partition

    world = ctx.find_object(Surroundings)
    assert world is not None
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
        try:
            from keyfold.spark.verify import verify_on_spark
        except ImportError as error:
            raise KeyfoldError(f"--spark needs Spark: {error}", hint="pip install 'keyfold[spark]'") from error
        for report in verify_on_spark(target.store, places, clock=clock, random=random):
            yield compared(report)
    else:
        with ThreadPoolExecutor(at_once, thread_name_prefix="partition") as pool:
            try:
                yield from pool.map(lambda place: compared(verified(place)), places)
            except BaseException:
                bars.stop()  # or the pool would wait until all is read
                raise


@click.command()
@topic_arguments
@click.option("--partition", "-p", type=click.IntRange(min=0), required=True, help="The partition to bring back.")
@click.option(
    "--from",
    "base",
    type=click.Choice(["auto", "version", "segments"]),
    default="auto",
    show_default=True,
    help="What to stand on: an older version of the manifest, where the bucket keeps versions, or the segments.",
)
@click.option("--replace-damaged", is_flag=True, help="Replace a manifest that cannot be read; a copy of it is kept.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@json_option
@click.pass_context
def repair(
    ctx: click.Context,
    url: str,
    topic: str,
    partition: int,
    base: Base,
    *,
    replace_damaged: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring back a lost or damaged manifest.

    From the newest version of the object that can be read, where the bucket keeps versions and its objects are still
    there, with what was appended since; else from the segments: then everything is cleaned again, and tombstones get a
    new delete horizon. Stop sink and compactor of this partition first: their epochs end with the old manifest.

    Refuses where a sound manifest is there. Refuses also for a replica, whose replicator brings the manifest back; with
    --from it becomes a log of its own.

    \b
    Examples:
        keyfold log repair s3://bucket/topics users --partition 0 --dry-run
        keyfold log repair s3://bucket/topics users --partition 0 --replace-damaged --from segments
    """  # noqa: D301 - click wants the character
    from keyfold.cli import show
    from keyfold.read.repair import apply_repair, plan_repair

    world = ctx.find_object(Surroundings)
    assert world is not None
    target = open_target(ctx, url, topic, partition)
    place = target.log.place(partition)
    clock, random = world.clock, world.random
    plan = plan_repair(target.store, place, clock=clock, random=random, base=base, replace_damaged=replace_damaged)
    if not dry_run:
        apply_repair(target.store, plan, clock=clock, random=random)
    as_lines = (
        [show.dumps(show.repair_json(plan, dry_run=dry_run))] if as_json else show.repair_lines(plan, dry_run=dry_run)
    )
    for line in as_lines:
        echo(line)


class _Stopped(Exception):
    """Somebody has interrupted the command."""


@dataclass(slots=True)
class _Bars:
    """What was read and compared so far. Told by several threads; once it is stopped it ends each of them."""

    on_bytes: Callable[[int], None] = lambda _: None
    on_compared: Callable[[int], None] = lambda _: None
    _stop: Event = field(default_factory=Event)
    _lock: Any = field(default_factory=Lock)
    _compared: int = 0

    def read_bytes(self, n_bytes: int) -> None:
        """So many stored bytes were read."""
        self._check()
        with self._lock:
            self.on_bytes(n_bytes)

    def compared(self, count: int) -> None:
        """So many records were held against Kafka."""
        self._check()
        with self._lock:
            self._compared += count
            self.on_compared(self._compared)

    def stop(self) -> None:
        """End the threads at their next step."""
        self._stop.set()

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


@contextmanager
def _progress(topic: str, target: Target) -> Iterator[_Bars]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield _Bars()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(f"verifying {topic}", total=_bytes_to_read(target))
        yield _Bars(
            lambda n_bytes: bars.advance(task, n_bytes),
            lambda count: bars.update(task, description=f"verifying {topic}, {count:,} records compared with Kafka"),
        )


def _bytes_to_read(target: Target) -> int:
    with ThreadPoolExecutor(_PARALLEL_MAX) as pool:
        return sum(pool.map(lambda number: _log_bytes(target, number), target.partitions))


def _log_bytes(target: Target, partition: int) -> int:
    try:
        return sum(s.size_bytes + s.index_size_bytes for s in target.log.manifest(partition).segments)
    except KeyfoldError:
        return 0  # the verification itself will say why
