"""The command `keyfold`: find the sub-command, run it, and turn the outcome into an exit code.

    0    the command succeeded
    1    the command failed: one line `error: ...` on stderr, and a line `hint: ...` if there is something to do
    2    the command line or the configuration is wrong
    3    `keyfold sink run --until-caught-up`: only records of open transactions are left
    130  interrupted

Errors of the command line have the same form. Tracebacks are printed only with KEYFOLD_DEBUG=1.

Other packages add their commands with the entry point group `keyfold.commands`. A package is imported when its command
is named, or listed without a summary, and it imports its heavy libraries only when the command runs, so that `--help`
is quick.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.common_options import add_common_options
from keyfold.cli.context import CliContext, open_by_url
from keyfold.cli.usage import usage_message
from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.extras import extra_missing
from keyfold.runtime.terminal import echo

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS_GROUP = "keyfold.commands"
COMPLETION_VARIABLE = "_KEYFOLD_COMPLETE"

# Summaries for `keyfold --help`, which then does not need to import these packages.
SUMMARIES = {
    "sink": "Append Kafka topics to the log, exactly once.",
    "compact": "Clean logs as Kafka's log cleaner cleans a compacted topic.",
    "replica": "Replicate logs to another bucket, and promote a replica to be the source.",
    "serve": "Answer by key over HTTP, and show logs in a browser.",
    "demo": "Show Kafka, sink, compactor and reader at work on this machine.",
}

# The extras that install what these packages import; the other packages and commands name theirs themselves.
EXTRAS = {"sink": "sink", "compact": "spark", "demo": "demo"}


class PackageGroup(click.Group):
    """The built-in commands, and those of the installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in order."""
        return sorted({*super().list_commands(ctx), *_packages()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name. If a library of its package is missing, the command says so when it runs."""
        found = super().get_command(ctx, cmd_name)
        if found is None and (package := _packages().get(cmd_name)) is not None:
            found = _load(package)
        return None if found is None else add_common_options(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands. Packages with a summary are not imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with `incomplete`. Packages are not imported for it."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._summary(ctx, name)) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, ctx: click.Context, name: str) -> str:
        summary = SUMMARIES.get(name)
        if summary is None:
            command = self.get_command(ctx, name)
            summary = "" if command is None else command.get_short_help_str(limit=90)
        return summary


def _packages() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


def _load(package: EntryPoint) -> click.Command:
    try:
        command: click.Command = package.load()
    except (ImportError, AttributeError) as error:
        return _unusable(package.name, str(error))
    return command


def _unusable(name: str, reason: str) -> click.Command:
    what, hint = f"`keyfold {name}` cannot start: {reason}", f"pip install 'keyfold[{EXTRAS.get(name, 'all')}]'"

    def fail(**_: object) -> None:
        raise KeyfoldError(what, hint=hint)

    context = {"ignore_unknown_options": True, "allow_extra_args": True}
    text = f"{what}\n\n{hint}"  # --help shows why the command has no help text
    return click.Command(name, callback=fail, help=text, short_help="(not installed)", context_settings=context)


_EPILOG = """The --help of every command has an example. To complete commands and options with TAB:

\b
    in ~/.bashrc    eval "$(_KEYFOLD_COMPLETE=bash_source keyfold)"
    in ~/.zshrc     eval "$(_KEYFOLD_COMPLETE=zsh_source keyfold)"
    in fish         _KEYFOLD_COMPLETE=fish_source keyfold | source
"""


@click.group(
    cls=PackageGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
)
@click.version_option(package_name="keyfold", message="%(version)s")
def cli() -> None:
    """Keep Kafka topics in object storage as a compacted log.

    \b
    Examples:
        keyfold log list s3://bucket/topics
        keyfold log cat s3://bucket/topics users --latest --json

    Endpoint, region and credentials come from the usual AWS variables (AWS_ENDPOINT_URL, AWS_REGION,
    AWS_ACCESS_KEY_ID, ...), or from the configuration file of a command.
    """  # noqa: D301 - click wants the character


def main(args: Sequence[str] | None = None, *, context: CliContext | None = None) -> None:
    """Run the command and exit with its exit code."""
    exit_code = run(args, context)
    # Python looks for cycles in all that was imported when it ends: up to 0.2 s, a sixth of a short command (measured).
    gc.freeze()
    sys.exit(exit_code)


def run(args: Sequence[str] | None, context: CliContext | None = None) -> int:
    """Run the command and return its exit code."""
    # keyfold uses nothing of OpenBLAS. NumPy, which a command may import later, makes it start a thread for each core,
    # and each thread spins for 0.1 s of CPU before it sleeps (measured).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _add_commands()
    obj = context or CliContext(open_by_url, SystemClock(), Random())
    arguments = sys.argv[1:] if args is None else list(args)
    try:
        if instruction := os.environ.get(COMPLETION_VARIABLE):
            from click.shell_completion import shell_complete

            return shell_complete(cli, {"obj": obj}, "keyfold", COMPLETION_VARIABLE, instruction)
        # `cli.main` is not used because it ends with exit code 1 if the pipe is closed.
        with cli.make_context("keyfold", arguments, obj=obj) as invocation:
            cli.invoke(invocation)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - the last place that can turn an error into words
        return _failed(_named(error, arguments))
    return 0


def _add_commands() -> None:
    from keyfold.cli.cat import cat
    from keyfold.cli.export import export
    from keyfold.cli.get import get
    from keyfold.cli.log import log
    from keyfold.cli.map import map_logs
    from keyfold.cli.restore import restore
    from keyfold.cli.table import table
    from keyfold.cli.verify import repair, verify

    cli.add_command(restore)
    log.add_command(cat)
    log.add_command(export)
    log.add_command(get)
    log.add_command(map_logs)
    log.add_command(repair)
    log.add_command(verify)
    cli.add_command(log)
    cli.add_command(table)
    add_common_options(cli)


def _misused(error: click.ClickException) -> int:
    """Print an error of the command line and return its exit code. A group without a command prints its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        _print_error(*usage_message(error))
    return error.exit_code


def _print_error(message: str, hint: str | None) -> None:
    echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        echo(f"hint: {hint}", err=True)


def _reader_left() -> int:
    """Return success: the reader of the output (`| head`) closed the pipe. Python must not flush into it at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    return 0


def _named(error: Exception, arguments: Sequence[str]) -> Exception:
    """Return the error that names the command's extra, if a library is missing; otherwise `error`."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    if not isinstance(error, ImportError) or command not in EXTRAS:
        return error
    return extra_missing(error, f"`keyfold {command}`", EXTRAS[command])


def _failed(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        return _misused(error)
    if os.environ.get("KEYFOLD_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, KeyfoldError):
        message, hint = error.message, error.hint
    else:
        message, hint = f"{type(error).__name__}: {error}", "set KEYFOLD_DEBUG=1 to see the traceback"
    _print_error(message, hint)
    return error.exit_code if isinstance(error, KeyfoldError) else 1
