"""Build a task's record validation and dead letters from its options."""

from __future__ import annotations

from typing import Final

from keyfold.runtime.clock import Clock
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.validate.convert.api import Checks
from keyfold_sink.validate.dead_letter import DeadLetterOrigin
from keyfold_sink.validate.dead_letter_topic import DeadLetterTopic, OpenProducer
from keyfold_sink.validate.error_counts import ErrorCounts
from keyfold_sink.validate.record_validation import ErrorPolicy, RecordValidation
from keyfold_sink.write.memory_budget import InFlight

# Dead letters in flight, which the client copies once, may take this fraction of the segments' memory.
_DEAD_LETTERS_SHARE: Final = 8


def sends_dead_letters(options: SinkOptions) -> bool:
    """Whether dead letters are sent: `errors.tolerance` is `all`, and there is a dead letter topic."""
    return bool(options.dead_letter_topic) and options.errors_tolerance == "all"


def open_validation(
    options: SinkOptions,
    group: ConsumerGroup,
    *,
    clock: Clock,
    meter: TaskMeter,
    in_flight: InFlight,
    checks: Checks | None = None,
    open_producer: OpenProducer | None = None,
    task_id: int = 0,
) -> RecordValidation:
    """Build the record validation of one task. Without `checks` all records are valid."""
    counts = ErrorCounts(meter)
    dead_letters = None
    if open_producer is not None and sends_dead_letters(options):
        dead_letters = DeadLetterTopic(
            options.dead_letter_topic,
            open_producer,
            limit_bytes=plan_memory(options.buffer_memory).segments_bytes // _DEAD_LETTERS_SHARE,
            in_flight=in_flight,
            counts=counts,
            clock=clock,
        )
    policy = ErrorPolicy(
        tolerates=options.errors_tolerance == "all",
        logs=options.errors_log_enable,
        logs_messages=options.errors_log_include_messages,
        origin=DeadLetterOrigin(options.name, task_id, context=options.dead_letter_context_headers),
        dead_letters=dead_letters,
    )
    return RecordValidation(
        policy,
        checks,
        group.fetching,
        counts,
        clock,
        is_read=lambda owner: owner.is_fetched and group.assigned.get(owner.key) is owner,
        fail=group.fail,
    )
