"""`keyfold sink status`, `pause`, `resume`, `stop`, `flush`, `restart` and `offsets`: clients of a sink's REST API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from keyfold.cli.context import CliContext
from keyfold.cli.log_options import document_json_option
from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.runtime.terminal import echo, echo_json
from keyfold_sink.topic_partition import TopicPartitionKey

if TYPE_CHECKING:
    from keyfold_sink.cli.client import SinkClient
    from keyfold_sink.rest import shapes
    from keyfold_sink.status import RunState

_POLL_S: Final = 0.5
_WATCH_S: Final = 1.0
_NOT_WELL: Final = 1
_MOVE: Final = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,9})=(?P<offset>[0-9]{1,18})")

F = TypeVar("F", bound=Callable[..., object])


class NotInTime(KeyfoldError):
    """The sink has not done in time what was requested. It still will."""


def _of_sink(function: F) -> F:
    """Add the argument and the option that say where the sink is."""
    function = click.option(
        "--url", metavar="URL", help="Address of a worker's REST API. Default: listeners of CONFIG, or port 8083 here."
    )(function)
    return click.argument(
        "config", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[CONFIG]"
    )(function)


_wait = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait until all tasks have done it, and fail after this time.",
)


@click.command(epilog="Example: keyfold sink status users.json --watch")
@_of_sink
@click.option("--watch", is_flag=True, help="Show the status again every second, until Ctrl-C.")
@click.option("--partitions", "each", is_flag=True, help="Print one row per partition.")
@document_json_option
@click.pass_context
def status(
    context: click.Context, config: Path | None, url: str | None, *, watch: bool, each: bool, as_json: bool
) -> None:
    """Show whether a sink works, its lag, what it has buffered, and its last commits.

    The exit code is 1 if a task or partition has failed or makes no progress. BUFFERED counts records that were read
    and are not durable yet; NEXT ROLL is the time by which segment.ms makes them durable.
    """
    from keyfold_sink.cli.client import SinkClient
    from keyfold_sink.cli.status_text import is_well

    world: CliContext = context.obj
    with SinkClient.open(config, url) as client:
        if watch:
            _watch(client, world.clock, each=each, as_json=as_json)
        found, partitions = client.status(), client.partitions()
        for line in _lines(found, partitions, world.clock.now_ms(), each=each, as_json=as_json):
            echo(line)
        context.exit(0 if is_well(found, partitions) else _NOT_WELL)


@click.command(epilog="Example: keyfold sink pause users.json --wait 60")
@_of_sink
@_wait
@click.pass_obj
def pause(world: CliContext, config: Path | None, url: str | None, wait_s: float | None) -> None:
    """Pause a sink. Its tasks commit what they have read, stop reading, and keep their partitions."""
    from keyfold_sink.status import RunState

    _request("pause", RunState.PAUSED, config, url, wait_s, world.clock)


@click.command(epilog="Example: keyfold sink resume users.json")
@_of_sink
@_wait
@click.pass_obj
def resume(world: CliContext, config: Path | None, url: str | None, wait_s: float | None) -> None:
    """Resume a paused or stopped sink."""
    from keyfold_sink.status import RunState

    _request("resume", RunState.RUNNING, config, url, wait_s, world.clock)


@click.command(epilog="Example: keyfold sink stop users.json --wait 60")
@_of_sink
@_wait
@click.pass_obj
def stop(world: CliContext, config: Path | None, url: str | None, wait_s: float | None) -> None:
    """Stop a sink. Its tasks commit what they have read and end; its workers stay, and wait for resume."""
    from keyfold_sink.status import RunState

    _request("stop", RunState.STOPPED, config, url, wait_s, world.clock)


@click.command(epilog="Example: keyfold sink flush users.json --wait 60")
@_of_sink
@_wait
@click.pass_obj
def flush(world: CliContext, config: Path | None, url: str | None, wait_s: float | None) -> None:
    """Make all that was read durable now: finish the open segments, and commit them."""
    from keyfold_sink.cli.client import SinkClient

    with SinkClient.open(config, url) as client:
        read = {_key(part): part.position for part in client.partitions() if part.position is not None}
        client.request("flush")
        if wait_s is None:
            echo(f"{client.name}: flush requested; all workers follow within seconds")
            return
        _await(lambda: _undurable(client, read), wait_s, world.clock)
        echo(f"{client.name}: flushed")


@click.command(epilog="Example: keyfold sink restart users.json --only-failed")
@_of_sink
@click.option(
    "--task", "tasks", type=click.IntRange(min=0), multiple=True, help="Only the task with this id. Repeatable."
)
@click.option("--only-failed", is_flag=True, help="Only tasks that have failed.")
@click.option(
    "--no-tasks", is_flag=True, help="Restart no task, but look up the store's credentials, topics and settings again."
)
def restart(config: Path | None, url: str | None, tasks: Sequence[int], *, only_failed: bool, no_tasks: bool) -> None:
    """Restart the tasks of a sink. They commit what they have read first."""
    from keyfold_sink.cli.client import SinkClient

    if bool(tasks) + only_failed + no_tasks > 1:
        raise click.UsageError("--task, --only-failed and --no-tasks contradict each other: give one of them")
    with SinkClient.open(config, url) as client:
        for task in tasks:
            client.restart_task(task)
        if not tasks:
            client.restart(include_tasks=not no_tasks, only_failed=only_failed)
        echo(f"{client.name}: restart requested; all workers follow within seconds")


@click.command(epilog="Example: keyfold sink offsets users.json --move users-3=1010")
@_of_sink
@click.option(
    "--move",
    "moves",
    multiple=True,
    metavar="TOPIC-PARTITION=OFFSET",
    help="Move the end of this partition's log forward. Repeatable: all ends move, or none.",
)
@document_json_option
def offsets(config: Path | None, url: str | None, moves: Sequence[str], *, as_json: bool) -> None:
    """Show the end of each partition's log, or move ends forward over records that cannot be stored.

    Stop the sink first (`keyfold sink stop --wait 60`). The log records each gap. An end never moves back, because a
    log holds each offset once.
    """
    from keyfold_sink.cli.client import SinkClient
    from keyfold_sink.cli.status_text import offsets_lines

    wanted = dict(map(_move, moves))
    if len(wanted) != len(moves):
        raise click.UsageError("--move names the same partition twice")
    with SinkClient.open(config, url) as client:
        if wanted:
            message = client.alter_offsets(wanted)
            if not as_json:
                echo(message)
        found = client.offsets()
        if as_json:
            echo_json(found.model_dump(mode="json"), indent=2)
        else:
            for line in offsets_lines(found):
                echo(line)


def _move(text: str) -> tuple[TopicPartitionKey, int]:
    match = _MOVE.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--move {text!r} is not TOPIC-PARTITION=OFFSET, such as users-3=1010")
    return (match["topic"], int(match["partition"])), int(match["offset"])


def _request(
    action: str, target: RunState, config: Path | None, url: str | None, wait_s: float | None, clock: Clock
) -> None:
    from keyfold_sink.cli.client import SinkClient

    with SinkClient.open(config, url) as client:
        client.request(action)
        if wait_s is None:
            echo(f"{client.name}: {action} requested; all workers follow within seconds")
            return
        _await(lambda: _not_yet(client.status(), target), wait_s, clock)
        echo(f"{client.name}: {target}")


def _not_yet(found: shapes.ConnectorStatus, target: RunState) -> str:
    """Return what is not in the requested state, empty if all is. A stopped sink has no tasks."""
    from keyfold_sink.status import RunState

    if found.connector.state is not target:
        return f"the sink is {found.connector.state}"
    if target is RunState.STOPPED:
        return f"{len(found.tasks)} tasks have not ended" if found.tasks else ""
    others = [f"task {task.id} is {task.state}" for task in found.tasks if task.state is not target]
    return ", ".join(others) if found.tasks else "no task has started"


def _undurable(client: SinkClient, read: dict[TopicPartitionKey, int]) -> str:
    """Return the partitions whose records before these positions are not durable, empty if all are."""
    now = {_key(part): part.next_offset for part in client.partitions()}
    behind = [
        f"{topic}-{number}"
        for (topic, number), offset in read.items()
        if (end := now.get((topic, number))) is not None and end < offset
    ]
    return f"not durable yet: {', '.join(behind)}" if behind else ""


def _key(part: shapes.PartitionDetails) -> TopicPartitionKey:
    return part.topic, part.partition


def _await(missing: Callable[[], str], wait_s: float, clock: Clock) -> None:
    until_s = clock.monotonic_s() + wait_s
    while what := missing():
        if clock.monotonic_s() >= until_s:
            raise NotInTime(
                f"not done within {wait_s:g} s: {what}",
                hint="the request is saved, and the sink still carries it out: see `keyfold sink status`",
            )
        clock.sleep(_POLL_S)


def _document(found: shapes.ConnectorStatus, partitions: Sequence[shapes.PartitionDetails]) -> dict[str, Any]:
    return {
        "status": found.model_dump(mode="json", exclude_none=True),
        "partitions": [part.model_dump(mode="json") for part in partitions],
    }


def _watch(client: SinkClient, clock: Clock, *, each: bool, as_json: bool) -> None:
    """Show the status every second: in place at a terminal, otherwise one after the other. Never returns."""
    from keyfold_sink.cli.watch import StatusView

    client.status()  # an address without a sink is an error at once; a later outage is shown
    with StatusView(is_plain=as_json) as view:
        while True:
            try:
                view.show(_lines(client.status(), client.partitions(), clock.now_ms(), each=each, as_json=as_json))
            except KeyfoldError as error:
                view.show_error(f"{error.message}; trying again")
            clock.sleep(_WATCH_S)


def _lines(
    found: shapes.ConnectorStatus,
    partitions: Sequence[shapes.PartitionDetails],
    now_ms: int,
    *,
    each: bool,
    as_json: bool,
) -> Iterable[str]:
    from keyfold_sink.cli.status_text import status_lines

    if as_json:
        return [json.dumps(_document(found, partitions), ensure_ascii=False)]
    return status_lines(found, partitions, now_ms, each=each)
