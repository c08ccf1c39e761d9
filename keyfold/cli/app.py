"""The command `keyfold`: finds its sub-commands, and turns every outcome into one exit code.

    0    done
    1    it failed: one line `error: ...` on stderr, and a line `hint: ...` where something can be done
    2    called wrongly, a configuration that cannot be used included
    3    `keyfold sink run --until-caught-up`: records are left that belong to open transactions
    130  interrupted

Nothing prints a traceback, but with KEYFOLD_DEBUG=1. Rooms above this floor add their commands by the entry point
group `keyfold.commands`; they are imported only when they are named or listed, and import their own heavy libraries
only when they run, so that `--help` stays quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import TYPE_CHECKING, Any

import click

from keyfold.clock import Clock, SystemClock
from keyfold.errors import KeyfoldError
from keyfold.terminal import echo

if TYPE_CHECKING:
    from keyfold.store.api import ObjectStore
    from keyfold.store.pace import Pacer
    from keyfold.store.s3 import S3Location

COMMANDS_GROUP = "keyfold.commands"

# What `keyfold --help` says of the rooms, so that it need not import them.
SUMMARIES = {
    "sink": "Append Kafka topics to the log, exactly once.",
    "compact": "Clean logs as Kafka's log cleaner cleans a compacted topic.",
    "replica": "Carry logs to another bucket, and make that one the source when it has to be.",
    "demo": "Show the whole story on this machine, self-contained.",
}

OpenStore = Callable[[str], "tuple[ObjectStore, str]"]
"""URL -> (store, topics.dir)."""

OpenLocation = Callable[["S3Location", "Pacer | None"], "ObjectStore"]
"""A bucket with its endpoint and credentials, and who paces its bytes -> store."""


def open_by_url(url: str) -> tuple[ObjectStore, str]:
    """The bucket of `s3://bucket/topics.dir`, with the usual AWS variables, and the topics.dir."""
    from keyfold.store.location import open_store, parse_url

    return open_store(url), parse_url(url)[1]


def open_by_location(location: S3Location, pacer: Pacer | None = None) -> ObjectStore:
    """The bucket at a location that a configuration describes."""
    return location.open(pacer)


@dataclass(slots=True)
class Surroundings:
    """What commands need of the world; `ctx.obj` of every command."""

    open_store: OpenStore
    clock: Clock
    random: Random
    open_location: OpenLocation = open_by_location


class RoomGroup(click.Group):
    """Built-in commands, and those of the rooms that are installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in order."""
        return sorted({*super().list_commands(ctx), *_rooms()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name; a room whose libraries are missing is a command that says so."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        room = _rooms().get(cmd_name)
        return None if room is None else _load(room)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; rooms that are known are not imported for it."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            summary = SUMMARIES.get(name)
            if summary is None:
                command = self.get_command(ctx, name)
                summary = "" if command is None else command.get_short_help_str(limit=90)
            rows.append((name, summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _rooms() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


def _load(room: EntryPoint) -> click.Command:
    try:
        command: click.Command = room.load()
    except (ImportError, AttributeError) as error:
        return _unusable(room.name, str(error))
    return command


def _unusable(name: str, reason: str) -> click.Command:
    what, hint = f"`keyfold {name}` cannot start: {reason}", "install it with: pip install 'keyfold[all]'"

    def fail(**_: Any) -> None:
        raise KeyfoldError(what, hint=hint)

    context = {"ignore_unknown_options": True, "allow_extra_args": True}
    text = f"{what}\n\n{hint}"  # who asks for help is told why there is none
    return click.Command(name, callback=fail, help=text, short_help="(not installed)", context_settings=context)


@click.group(
    cls=RoomGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Every command has --help with an example.",
)
@click.version_option(package_name="keyfold", message="%(version)s")
def cli() -> None:
    """Keep Kafka topics in object storage as a compacted log.

    \b
    Look at what is in a bucket:
        keyfold log list s3://bucket/topics
        keyfold log cat s3://bucket/topics users --latest --json
    \b
    The bucket is found with the usual AWS variables (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...).
    """  # noqa: D301 - click wants the character


def main(args: Sequence[str] | None = None, *, surroundings: Surroundings | None = None) -> None:
    """Run the command and leave the process with its exit code."""
    sys.exit(run(args, surroundings))


def run(args: Sequence[str] | None, surroundings: Surroundings | None = None) -> int:
    """Run the command; returns the exit code."""
    from keyfold.cli.export import export
    from keyfold.cli.log import log
    from keyfold.cli.restore import restore
    from keyfold.cli.verify import repair, verify

    cli.add_command(restore)
    log.add_command(export)
    log.add_command(repair)
    log.add_command(verify)
    cli.add_command(log)
    world = surroundings or Surroundings(open_by_url, SystemClock(), Random())
    arguments = sys.argv[1:] if args is None else list(args)
    try:
        # Not `cli.main`: it would end a closed pipe with exit code 1 by itself.
        with cli.make_context("keyfold", arguments, obj=world) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - the last place that can turn an error into words
        return _failed(error)
    return 0


def _reader_left() -> int:
    """Who reads our output (`| head`) has enough: that is no error. Python must not flush into the pipe at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    return 0


def _failed(error: Exception) -> int:
    if os.environ.get("KEYFOLD_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, KeyfoldError):
        message, hint = error.message, error.hint
    else:
        message, hint = f"{type(error).__name__}: {error}", "KEYFOLD_DEBUG=1 shows where this came from"
    echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        echo(f"hint: {hint}", err=True)
    return error.exit_code if isinstance(error, KeyfoldError) else 1
