"""Planning of a batch: one version of each partition, pinned, and what filters leave of it.

Requests are made only where they can matter: partitions that a filter excludes are not looked at, segments that it
excludes are not opened, and only segments that are cut have their block table read.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from keyfold.errors import ConfigError, ObjectNotFound, OffsetOutOfRange
from keyfold.log.manifest import Manifest
from keyfold.read.position import anchor_of, start_offset
from keyfold.spark.source.filters import FilterBounds
from keyfold.spark.source.options import EARLIEST, LATEST, OffsetBounds, SourceOptions
from keyfold.spark.source.plan import Span, SpanSlice, span_of, tasks_of
from keyfold.spark.source.resume import with_way_out
from keyfold.spark.source.topic import SourceTopic

log = structlog.get_logger(__name__)


def plan_batch(topic: SourceTopic, options: SourceOptions, scope: FilterBounds) -> list[tuple[SpanSlice, ...]]:
    """The tasks of a batch, none where nothing can match.

    Raises `ConfigError`, `TopicNotFound`, `OffsetOutOfRange`, and what reading a manifest raises.
    """
    if scope.is_empty:
        return []
    partitions = topic.partitions()
    check_named(options, partitions)
    wanted = [partition for partition in partitions if scope.has_partition(partition)]
    while True:
        spans = [_span(topic, options, scope, manifest) for manifest in topic.manifests(wanted).values()]
        spans = [span for span in spans if span.entries]
        try:
            return tasks_of(spans, options.max_partition_bytes, options.min_partitions, topic.table)
        except ObjectNotFound as error:  # compacted and collected since its manifest was read
            topic.prove_gone(error, wanted)


def check_named(options: SourceOptions, partitions: list[int]) -> None:
    """Raise `ConfigError` where offsets are given for a partition that is not read, or are missing for one that is."""
    for key, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if offsets is None or offsets.every is not None:
            continue
        given = set(offsets.by_partition)
        if unknown := sorted(given - set(partitions)):
            raise ConfigError(
                key,
                f"names partition {unknown[0]}, which this query does not read",
                hint=f"the query reads the partitions {partitions}",
            )
        if missing := sorted(set(partitions) - given):
            hint = "name all partitions, or select some with the option `partitions`"
            raise ConfigError(key, f"has no offset for partition {missing[0]}", hint=hint)


def first_offset(manifest: Manifest, offsets: OffsetBounds | None, default: int, *, fail: bool) -> int:
    """Where to begin. An offset outside the log is `OffsetOutOfRange`; unless `fail` it is logged and moved inside."""
    asked = default if offsets is None else offsets.of(manifest.partition)
    if asked == LATEST:
        return manifest.next_offset
    if asked is None or asked == EARLIEST:
        return manifest.log_start_offset
    try:
        return start_offset(manifest, asked)
    except OffsetOutOfRange as error:
        if fail:
            raise with_way_out(error) from None
        held = min(max(asked, manifest.log_start_offset), manifest.next_offset)
        log.warning(
            "data loss ignored because failOnDataLoss is false",
            topic=manifest.topic,
            partition=manifest.partition,
            lost=error.message,
            position=asked,
            next_position=held,
        )
        return held


def _span(topic: SourceTopic, options: SourceOptions, scope: FilterBounds, manifest: Manifest) -> Span:
    """What to read of one partition. The named version may be newer than `manifest`."""
    fail = options.fail_on_data_loss
    if options.starting_timestamp is not None:
        manifest, start = topic.at_time(manifest, options.starting_timestamp)
    else:
        start = first_offset(manifest, options.starting_offsets, EARLIEST, fail=fail)
    asked = LATEST if options.ending_offsets is None else options.ending_offsets.of(manifest.partition)
    is_snapshot = asked in {None, LATEST} and options.ending_timestamp is None
    if options.ending_timestamp is not None:
        manifest, end = topic.at_time(manifest, options.ending_timestamp)
    else:
        end = manifest.next_offset if is_snapshot or asked is None else max(asked, 0)
    # `log_end` is where the version ends, wherever filters end the reading.
    log_end = manifest.next_offset if is_snapshot else None
    start, end = max(start, scope.min_offset), min(end, manifest.next_offset, scope.max_offset + 1)
    span = span_of(manifest, start, end, anchor_of(manifest), log_end=log_end)
    return replace(span, entries=tuple(entry for entry in span.entries if scope.selection.can_match(entry)))
