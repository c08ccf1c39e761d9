"""Usage errors as the command prints them: what is wrong, and what to do.

click knows options and commands. Its messages are kept, without the usage lines before them, and the closest name that
exists is suggested.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click


def usage_message(error: click.ClickException) -> tuple[str, str]:
    """Return the message and the hint of an error of the command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    help_hint = f"see `{context.command_path if context else 'keyfold'} --help`"
    if isinstance(error, click.NoSuchOption):
        return f"no such option `{error.option_name}`", _did_you_mean(error.option_name, _options(context), help_hint)
    if isinstance(error, click.exceptions.NoSuchCommand):
        return f"no such command `{error.command_name}`", _did_you_mean(
            error.command_name, _commands(context), help_hint
        )
    if type(error) is click.BadParameter and error.param is not None:
        names = error.param.get_error_hint(context).replace("'", "`") if context else f"`{error.param.name}`"
        return f"invalid value for {names}: {_sentence(error.message)}", help_hint
    text = _sentence(error.format_message())
    return text.replace("'", "`") if isinstance(error, click.MissingParameter) else text, help_hint


def _sentence(text: str) -> str:
    """Return a sentence of click as keyfold writes messages: lowercase, without a full stop."""
    text = text.strip().removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    bare = {each.lstrip("-"): each for each in known}  # dashes would make all options alike
    near = get_close_matches(name.lstrip("-"), list(bare), n=1)
    return f"did you mean `{bare[near[0]]}`?" if near else otherwise


def _options(context: click.Context | None) -> Iterable[str]:
    """Yield the options of the command in which the error was made."""
    if context is not None:
        for param in context.command.get_params(context):
            if isinstance(param, click.Option) and not param.hidden:
                yield from (*param.opts, *param.secondary_opts)


def _commands(context: click.Context | None) -> Iterable[str]:
    if context is not None and isinstance(context.command, click.Group):
        yield from context.command.list_commands(context)
