"""One task from its options: opens what it needs, proves the store, and runs until told to stop.

Everything that can be known to be wrong is said before the group is joined: a bucket that is missing, credentials
without rights, a store that ignores conditional writes. A store or a broker that does not answer is waited for.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from random import Random
from typing import TypeVar

import structlog

from keyfold.backoff import Backoff
from keyfold.clock import Clock
from keyfold.errors import KeyfoldError
from keyfold.store.location import open_store
from keyfold.store.probe import probe
from keyfold_sink import budget
from keyfold_sink.catchup import CatchUp
from keyfold_sink.consumer import admin_config, open_consumer
from keyfold_sink.kafka import AdminSource
from keyfold_sink.options import SinkOptions
from keyfold_sink.partition import Committed
from keyfold_sink.worker import SinkTask

T = TypeVar("T")


class Stopped(Exception):
    """Told to stop before there was anything to do."""


def run_task(
    options: SinkOptions,
    *,
    stop: threading.Event,
    until_caught_up: bool,
    clock: Clock,
    random: Random,
    on_committed: Callable[[Committed], None] = lambda _event: None,
) -> None:
    """Run one task until `stop` is set, or until it has caught up. Raises `KeyfoldError` when it cannot go on."""
    gc.freeze()  # what was imported is here to stay, and need not be looked through again
    store = open_store(options.location)
    source = AdminSource(admin_config(options), clock)
    try:
        _persist(lambda: probe(store, options.topics_dir, random), stop, random)
        catch_up = _persist(lambda: _targets(options, source), stop, random) if until_caught_up else None
        plan = budget.plan(options.buffer_memory)
        task = SinkTask(
            options,
            store=store,
            source=source,
            open_consumer=lambda on_commit: open_consumer(options, plan, on_commit),
            clock=clock,
            random=random,
            stop=stop,
            catch_up=catch_up,
            on_committed=on_committed,
        )
        task.run()
    except Stopped:
        return
    finally:
        store.close()


def _targets(options: SinkOptions, source: AdminSource) -> CatchUp:
    topics = options.choose_topics(source.topics() if options.topics_regex is not None else ())
    return CatchUp(source.stable_end_offsets(source.partitions(topics)))


def _persist(call: Callable[[], T], stop: threading.Event, random: Random) -> T:
    """Call until it answers. Raises `Stopped` when told to stop meanwhile."""
    for delay_s in Backoff(first_ms=200, cap_ms=10_000).delays_s(random):
        try:
            return call()
        except KeyfoldError as error:
            if not error.retriable:
                raise
            structlog.get_logger("keyfold.sink").warning("waiting for an answer", error=str(error))
        if stop.wait(delay_s):
            break
    raise Stopped
