"""Build a task from its options, check the store, and run the task until it is stopped.

Mistakes that can be detected are reported before the task joins the group: a missing bucket, credentials without
rights, a store that ignores conditional writes. The task waits for a store or broker that does not answer, and for
rights that are revoked later (`keyfold_sink.write.credential_renewal`).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from random import Random

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.store.location import open_store
from keyfold.store.probe import LOOP_RETRY_TIMEOUT_S, probe
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.group.catchup import CatchUp
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config, open_consumer
from keyfold_sink.kafka.contact import BrokerContact
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.metrics.metered_store import MeteredStore
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import TaskCommands
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.sink_task import SinkTask
from keyfold_sink.task.startup_retry import StartupRetry, StoppedAtStartup
from keyfold_sink.validate.convert.api import Checks
from keyfold_sink.validate.convert.converter_checks import checks_of, confluent_registry
from keyfold_sink.validate.convert.metered_registry import MeteredRegistry
from keyfold_sink.validate.dead_letter_producer import ensure_topic, open_producer
from keyfold_sink.validate.rejection import sends_dead_letters
from keyfold_sink.write.credential_renewal import RenewingStore, location_now
from keyfold_sink.write.partition import Committed


def run_task(
    options: SinkOptions,
    *,
    stop: threading.Event,
    until_caught_up: bool,
    transaction_timeout_s: float = 0.0,
    clock: Clock,
    random: Random,
    on_committed: Callable[[Committed], None] = lambda _event: None,
    commands: TaskCommands | None = None,
    reporter: StatusReporter | None = None,
    proven: bool = False,
) -> None:
    """Run one task until `stop` is set or it has caught up. Raise `KeyfoldError` if it cannot continue.

    A task that catches up waits at most `transaction_timeout_s` for transactions that were open when it started. The
    task follows `commands`, which share `stop`, and sends its status to `reporter` about every second. With `proven`
    the store has accepted requests of this sink before, so the task waits if the store refuses one.
    """
    reporter = reporter or StatusReporter(0, clock, lambda _status: None)
    try:
        timeout_s = transaction_timeout_s if until_caught_up else None
        _run(options, commands or TaskCommands(stop), reporter, timeout_s, proven, clock, random, on_committed)
    except StoppedAtStartup:
        return
    except KeyfoldError as error:
        reporter.send_state(RunState.FAILED, str(error))
        raise
    except Exception as error:
        # FAILED means that a restart would fail in the same way, which is not certain for an unexpected exception.
        reporter.send_state(RunState.UNASSIGNED, f"unexpected error: {type(error).__name__}: {error}")
        raise


def _run(
    options: SinkOptions,
    commands: TaskCommands,
    reporter: StatusReporter,
    catch_up_timeout_s: float | None,
    proven: bool,  # noqa: FBT001 - private
    clock: Clock,
    random: Random,
    on_committed: Callable[[Committed], None],
) -> None:
    gc.freeze()  # imported objects live as long as the process, so the garbage collector can skip them
    reporter.send_state(RunState.UNASSIGNED)
    meter = TaskMeter(clock)
    reporter.values = lambda: meter.values({})
    opened = open_store(options.location)
    access = RenewingStore(opened, lambda: location_now(options), clock, waits=proven)
    store = MeteredStore(access, meter)
    source = AdminSource(admin_config(options), clock)
    startup_retry = StartupRetry(commands.stop, reporter, clock, random)
    checks: Checks | None = None
    try:
        checks = checks_of(
            options,
            store=store,
            clock=clock,
            random=random,
            open_registry=lambda settings: MeteredRegistry(confluent_registry(settings), meter),
        )
        startup_retry(lambda: probe(store, options.topics_dir, clock, random, retry_timeout_s=LOOP_RETRY_TIMEOUT_S))
        access.waits = catch_up_timeout_s is None
        if sends_dead_letters(options):
            startup_retry(lambda: _ensure_dead_letter_topic(options, BrokerContact(clock)))
        catch_up = startup_retry(lambda: _targets(options, source)) if catch_up_timeout_s is not None else None
        plan = plan_memory(options.buffer_memory)
        task = SinkTask(
            options,
            store=store,
            source=source,
            open_consumer=lambda on_commit, on_error: open_consumer(
                options, plan, on_commit, on_error, BrokerContact(clock)
            ),
            clock=clock,
            random=random,
            commands=commands,
            reporter=reporter,
            meter=meter,
            checks=checks,
            open_producer=lambda on_error: open_producer(options, on_error),
            catch_up=catch_up,
            transaction_timeout_s=catch_up_timeout_s or 0.0,
            on_committed=on_committed,
            renew=access.renew,
        )
        task.run()
    finally:
        startup_retry.end()
        if checks is not None:
            checks.close()
        opened.close()


def _ensure_dead_letter_topic(options: SinkOptions, contact: BrokerContact) -> None:
    topic = options.dead_letter_topic
    if ensure_topic(options.admin_settings, topic, options.dead_letter_replication_factor, contact):
        structlog.get_logger("keyfold.sink").info("dead letter topic created", topic=topic)


def _targets(options: SinkOptions, source: AdminSource) -> CatchUp:
    topics = options.choose_topics(source.topics() if options.topics_regex is not None else ())
    return CatchUp(source.high_watermarks(source.partitions(topics)))
