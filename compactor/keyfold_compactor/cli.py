"""`keyfold compact`: run the compactor, or show what a run would do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NoReturn

import click

from keyfold.cli.context import CliContext
from keyfold.cli.log_options import document_json_option, partitions_option, topics_option
from keyfold.runtime.terminal import echo_json

if TYPE_CHECKING:
    from keyfold.replicas.after_run import AfterRunStep
    from keyfold_compactor.options import CompactOptions
    from keyfold_compactor.report.display import RunDisplay
    from keyfold_compactor.report.report import RunObserver, RunReport


@click.group()
def compact() -> None:
    """Clean logs as Kafka's log cleaner cleans a compacted topic.

    \b
    Examples:
        keyfold compact plan compact.json
        keyfold compact run compact.json --once
        keyfold compact run compact.json --once --engine local
    """  # noqa: D301 - click wants the character


def _selection(command: Callable[..., object]) -> Callable[..., object]:
    command = document_json_option(command)
    command = click.option("--force", is_flag=True, help="Clean at any dirty ratio.")(command)
    command = topics_option(partitions_option(command))
    return click.argument("config", type=click.Path(exists=True, dir_okay=False))(command)


@compact.command(epilog="Example: keyfold compact run compact.json --once")
@_selection
@click.option("--once", is_flag=True, help="Exit after one run, with code 1 if a partition failed; for a CronJob.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "spark", "local"]),
    help="Clean on Spark, or in this process without Java, or choose by the work. Takes precedence over "
    "compactor.engine in CONFIG.",
)
@click.option("--master", help="Master of Spark. Takes precedence over spark.master in CONFIG.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Setting of Spark. Takes precedence over CONFIG.")
@click.option("--collect-orphans", is_flag=True, help="Search every partition for orphans, not only cleaned ones.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Report every partition, not only every topic.")
@click.pass_obj
def run(
    world: CliContext,
    config: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    engine: str | None,
    master: str | None,
    conf: tuple[str, ...],
    *,
    force: bool,
    as_json: bool,
    once: bool,
    collect_orphans: bool,
    is_verbose: bool,
) -> None:
    """Clean the logs that are due, once or in a loop with log.cleaner.backoff.ms between runs.

    Ctrl-C ends the command after the current step, and a second Ctrl-C at once.
    """
    from keyfold.runtime.event_log import configure
    from keyfold.runtime.health import Liveness
    from keyfold.runtime.signals import stop_or_end_on_signals
    from keyfold.store.wrappers.observation import ObservedStore
    from keyfold_compactor.engine import check_engine, engine_values, open_engine
    from keyfold_compactor.job import Job, RunSelection
    from keyfold_compactor.options import CompactOptions
    from keyfold_compactor.report.display import announcing_stop, run_display
    from keyfold_compactor.report.liveness import LivenessObserver, LivenessProgress, quiet_max_s, with_liveness
    from keyfold_compactor.report.metrics_export import measuring

    options = CompactOptions.parse({**_read(config), **engine_values(engine, _spark_values(master, conf))})
    check_engine(options)
    with run_display(world.clock, as_json=as_json) as display:
        configure(json=as_json, level=options.log_level)
        stop = stop_or_end_on_signals(display.end_at_once)
        liveness = Liveness(world.clock, quiet_max_s(options), stop.is_set)
        progress = LivenessProgress(display, liveness)
        publish = partial(_publish, display, as_json=as_json, is_verbose=is_verbose, is_loop=not once)
        with (
            announcing_stop(stop, display),
            measuring(options, world.clock, is_once=once, checked=liveness) as observer,
            open_engine(options, world.clock, progress=progress, say=display.say) as executors,
            _replicas(world, options, topics, partitions, observer) as replicate,
            _directories(world, options, topics, partitions) as keep_directories,
            _tables(world, options, topics) as sync_tables,
        ):
            job = Job(
                options,
                RunSelection(topics, partitions, force, collect_orphans),
                ObservedStore(options.location().open(), liveness),
                executors,
                clock=world.clock,
                random=Random(world.random.getrandbits(64)),
                progress=progress,
                check_executor=executors.check_alive,
                observer=LivenessObserver(display.observed(observer), liveness),
                replicate=with_liveness(replicate, liveness),
                keep_directories=with_liveness(keep_directories, liveness),
                sync_tables=with_liveness(sync_tables, liveness),
            )
            if once:
                job.prove_store()
                report = job.once(stop.is_set)
                publish(report)
                raise click.exceptions.Exit(report.exit_code)
            job.prove_store_until(stop)
            job.loop(stop, publish)


def _publish(display: RunDisplay, report: RunReport, *, as_json: bool, is_verbose: bool, is_loop: bool) -> None:
    """Print the report of a run. In a loop a run that did nothing has none, and the next run is waited for."""
    from keyfold_compactor.report.display import WAITING
    from keyfold_compactor.report.show import print_report

    display.clear()
    print_report(report, as_json=as_json, is_verbose=is_verbose, is_quiet_silent=is_loop)
    if is_loop:
        display.begin_stage(WAITING, 0)


@compact.command(epilog="Example: keyfold compact plan compact.json --topic users")
@_selection
@click.option("--exact", "is_exact", is_flag=True, help="Read the indexes of the logs that are due, to count records.")
@click.pass_obj
def plan(
    world: CliContext,
    config: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    *,
    force: bool,
    as_json: bool,
    is_exact: bool,
) -> None:
    """Show what the next run would clean, why or why not, what it would free, and at what cost.

    The command changes nothing and does not start Spark.
    """
    from keyfold.runtime.event_log import configure
    from keyfold_compactor.job import Job, RunSelection
    from keyfold_compactor.options import CompactOptions
    from keyfold_compactor.report.show import plan_document, plan_lines, print_lines

    def no_executor(_due_bytes: int) -> NoReturn:
        raise AssertionError("a plan must not run a Spark job")

    options = CompactOptions.parse(_read(config))
    configure(json=as_json, level=options.log_level)
    job = Job(
        options,
        RunSelection(topics, partitions, force),
        options.location().open(),
        no_executor,
        clock=world.clock,
        random=world.random,
    )
    reviews = job.review()
    costs, rate = job.costs(reviews), options.io_max_bytes_per_second
    gains = job.gains(reviews, is_exact=is_exact)
    if as_json:
        echo_json(plan_document(reviews, costs, rate, gains), indent=2)
    else:
        print_lines(plan_lines(reviews, costs, rate, gains))
    raise click.exceptions.Exit(1 if any(review.error for review in reviews) else 0)


@contextlib.contextmanager
def _replicas(
    world: CliContext,
    options: CompactOptions,
    topics: Sequence[str],
    partitions: Sequence[int],
    observer: RunObserver,
) -> Iterator[AfterRunStep]:
    """Return the function that replicates after a run; it does nothing if `replicas.run` is not set."""
    if not options.replicas_run:
        yield lambda _: ()
        return
    from keyfold_compactor.replicating import replicating
    from keyfold_compactor.report.metrics_export import metrics_registry

    with replicating(
        options,
        frozenset(topics),
        frozenset(partitions),
        clock=world.clock,
        random=Random(world.random.getrandbits(64)),
        metrics=metrics_registry(observer),
        opener=world.open_location,
    ) as replicate:
        yield replicate


@contextlib.contextmanager
def _directories(
    world: CliContext, options: CompactOptions, topics: Sequence[str], partitions: Sequence[int]
) -> Iterator[AfterRunStep]:
    """Return the function that writes directories of keys after a run; it does nothing if `keys.directory` is unset."""
    if not options.keeps_directories:
        yield lambda _: ()
        return
    from keyfold_compactor.key_directories import keeping

    random = Random(world.random.getrandbits(64))
    with keeping(
        options,
        frozenset(topics),
        frozenset(partitions),
        clock=world.clock,
        random=random,
        opener=world.open_location,
    ) as keep:
        yield keep


@contextlib.contextmanager
def _tables(world: CliContext, options: CompactOptions, topics: Sequence[str]) -> Iterator[AfterRunStep]:
    """Return the function that syncs tables after a run; it does nothing if `tables.sync` is not set."""
    if not options.tables_sync:
        yield lambda _: ()
        return
    from keyfold_compactor.table_syncs import syncing

    random = Random(world.random.getrandbits(64))
    with syncing(options, frozenset(topics), clock=world.clock, random=random, opener=world.open_location) as syncs:
        yield syncs


def _read(config: str) -> dict[str, str]:
    from keyfold.config.options import read_config

    return read_config(config)


def _spark_values(master: str | None, pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the command line's settings of Spark as keys of the configuration."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, is_pair, value = pair.partition("=")
        if not is_pair or not key.startswith("spark."):
            # The value may be a secret, so only the key is shown.
            raise click.BadParameter(f"{key!r} must be spark.<key>=<value>", param_hint="--conf")
        values[key] = value
    if master is not None:
        values["spark.master"] = master
    return values
