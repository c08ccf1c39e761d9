"""`keyfold demo`: Kafka, sink, compactor and reader on one machine, with a check of the result."""

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
    from keyfold_demo.environment import DemoEnvironment
    from keyfold_demo.narration import Narrator
    from keyfold_demo.story import Plot


@click.command()
@click.option("--keep", is_flag=True, help="Keep Kafka and S3 running at the end, until Enter, Ctrl-C or SIGTERM.")
@click.option("--large", is_flag=True, help="Use Apache Kafka's own history, 98,257 records (source checkout only).")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, a summary, on stdout, and the steps on stderr."
)
def demo(*, keep: bool, large: bool, as_json: bool) -> int:
    """Run Kafka, S3, sink, compactor and reader on this machine. There is nothing to configure.

    The demo loads the history of a git repository into a compacted topic, sinks it, compacts the log and reads it back.
    Then it builds git's tree from the log's latest state and checks that it is the repository's. It needs Java 17 or
    newer; the first run fetches Kafka's jars from Maven Central. The exit code is 0 only if all checks pass.

    \b
    Examples:
        keyfold demo
        keyfold demo --keep
        keyfold demo --json | jq .holds
    """  # noqa: D301 - click wants the character
    from keyfold_demo.environment import DemoEnvironment
    from keyfold_demo.narration import Narrator
    from keyfold_demo.story import PARTITIONS, TOPIC, Story, prepare

    narrator = Narrator(to_stderr=as_json)
    plot = _plot(is_large=large)
    libs = prepare(narrator)
    with ExitStack() as exits:
        with narrator.step("Start a Kafka broker and an S3 server") as step:
            demo_environment = exits.enter_context(DemoEnvironment(TOPIC, PARTITIONS))
            step.result = f"Kafka at {demo_environment.broker.bootstrap_servers}, S3 at {demo_environment.s3.url}"
        summary = Story(plot, demo_environment, narrator, libs).tell()
        summary.seconds["start"] = step.seconds
        if keep:
            summary.kept = demo_environment.address()
        if as_json:
            click.echo(json.dumps(summary.to_json(), indent=2))
        if keep:
            _keep(demo_environment, narrator)
        with narrator.step("Stop everything and remove its files"):
            exits.close()
    _what_next(narrator, is_kept=keep)
    return 0 if summary.holds else 1


def _plot(*, is_large: bool) -> Plot:
    """Return the changelog to load. Raise `KeyfoldError` if the large one is not on this machine."""
    from keyfold_demo.story import Plot
    from keyfold_demo.treeproof import LARGE, SMALL, read_changelog, small_changelog

    if not is_large:
        return Plot(SMALL, "slatedb", tuple(small_changelog()))
    path = Path(__file__).resolve().parents[2] / "tests" / "data" / LARGE.file_name
    if not path.is_file():
        raise KeyfoldError(f"`--large` needs {LARGE.file_name}, which is only in a source checkout")
    return Plot(LARGE, "Apache Kafka", tuple(read_changelog(path)))


def _keep(demo_environment: DemoEnvironment, narrator: Narrator) -> None:
    """Print how to use what is running, and wait for Enter or for a signal. End of input does not count as Enter."""
    narrator.say()
    narrator.say("Kafka and S3 keep running. In another terminal:", "bold")
    environment = {"BOOTSTRAP_SERVERS": demo_environment.broker.bootstrap_servers, **demo_environment.s3.environment}
    for name, value in environment.items():
        narrator.say(f"    export {name}={value}")
    folder, url, topic = demo_environment.folder, demo_environment.url, demo_environment.topic
    for line in (
        f"keyfold log list {url}",
        f"keyfold log describe {url} {topic}",
        f"keyfold log cat {url} {topic} --latest --json",
        f"keyfold sink run {folder / 'sink.json'} --until-caught-up",
        f"keyfold compact plan {folder / 'compact.json'}",
    ):
        narrator.say(f"    {line}")
    narrator.say("Press Enter or Ctrl-C to stop them and remove everything.")
    try:
        if not sys.stdin.readline():
            threading.Event().wait()
    except KeyboardInterrupt:
        narrator.say()


def _what_next(narrator: Narrator, *, is_kept: bool) -> None:
    narrator.say()
    narrator.say("Next:", "bold")
    if not is_kept:
        narrator.say("    keyfold demo --keep        the same, but Kafka and S3 keep running for you to explore")
    narrator.say("    docs/getting-started.md    sink and compact a topic of your own")
    narrator.say("    keyfold --help             every command, each with an example")
