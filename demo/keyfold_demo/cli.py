"""`keyfold demo`: the whole product on one machine, with a proof at the end."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keyfold.errors import KeyfoldError

if TYPE_CHECKING:
    from keyfold_demo.stage import Stage
    from keyfold_demo.story import Plot
    from keyfold_demo.telling import Teller


@click.command()
@click.option("--keep", is_flag=True, help="Leave Kafka and S3 running at the end, until Enter, Ctrl-C or SIGTERM.")
@click.option("--large", is_flag=True, help="Apache Kafka's own history, 98,257 records (in a source checkout).")
@click.option("--json", "as_json", is_flag=True, help="A summary as one JSON object on stdout; the story on stderr.")
def demo(*, keep: bool, large: bool, as_json: bool) -> int:
    r"""Tell the whole story on this machine: Kafka, S3 and Spark on loopback, nothing to configure.

    Loads the history of a git repository into a compacted topic, sinks it, compacts it, reads it back, and proves that
    git's tree, built from the log's latest state, is the repository's. Needs Java 17 or newer; the first run fetches
    Kafka's jars from Maven Central. Exit code 0 only if everything holds.

    \b
    Examples:
        keyfold demo
        keyfold demo --keep
        keyfold demo --json | jq .holds
    """
    from keyfold_demo.stage import Stage
    from keyfold_demo.story import PARTITIONS, TOPIC, Story, prepare
    from keyfold_demo.telling import Teller

    teller = Teller(to_stderr=as_json)
    plot = _plot(is_large=large)
    libs = prepare(teller)
    with ExitStack() as exits:
        with teller.step("Start a Kafka broker and an S3 server") as step:
            stage = exits.enter_context(Stage(TOPIC, PARTITIONS))
            step.result = f"Kafka at {stage.broker.bootstrap_servers}, S3 at {stage.s3.url}"
        summary = Story(plot, stage, teller, libs).tell()
        summary.seconds["start"] = step.seconds
        if keep:
            summary.kept = stage.address()
        if as_json:
            click.echo(json.dumps(summary.to_json(), indent=2))
        if keep:
            _keep(stage, teller)
        with teller.step("Stop everything and remove its files"):
            exits.close()
    _what_next(teller, is_kept=keep)
    return 0 if summary.holds else 1


def _plot(*, is_large: bool) -> Plot:
    """The changelog that is told. Raises `KeyfoldError` where the large one is not here."""
    from keyfold_demo.story import Plot
    from keyfold_demo.treeproof import LARGE, SMALL, read_changelog, small_changelog

    if not is_large:
        return Plot(SMALL, "slatedb", tuple(small_changelog()))
    path = Path(__file__).resolve().parents[2] / "tests" / "data" / LARGE.file_name
    if not path.is_file():
        raise KeyfoldError(f"`--large` needs {LARGE.file_name}, which comes with a source checkout only")
    return Plot(LARGE, "Apache Kafka", tuple(read_changelog(path)))


def _keep(stage: Stage, teller: Teller) -> None:
    """Say how to get at what is running, and wait for Enter or for a signal. End of input is no Enter."""
    teller.say()
    teller.say("Kafka and S3 stay. In another terminal:", "bold")
    environment = {"BOOTSTRAP_SERVERS": stage.broker.bootstrap_servers, **stage.s3.environment}
    for name, value in environment.items():
        teller.say(f"    export {name}={value}")
    folder, url, topic = stage.folder, stage.url, stage.topic
    for line in (
        f"keyfold log list {url}",
        f"keyfold log describe {url} {topic}",
        f"keyfold log cat {url} {topic} --latest --json",
        f"keyfold sink run {folder / 'sink.json'} --until-caught-up",
        f"keyfold compact plan {folder / 'compact.json'}",
    ):
        teller.say(f"    {line}")
    teller.say("Enter or Ctrl-C ends it and removes everything.")
    try:
        if not sys.stdin.readline():
            threading.Event().wait()
    except KeyboardInterrupt:
        teller.say()


def _what_next(teller: Teller, *, is_kept: bool) -> None:
    teller.say()
    teller.say("Next:", "bold")
    if not is_kept:
        teller.say("    keyfold demo --keep        the same, and Kafka and S3 stay for you to look around")
    teller.say("    docs/getting-started.md    sink and compact a topic of your own")
    teller.say("    keyfold --help             every command, each with an example")
