"""What tests of the command line share: every command, by its words."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from keyfold.cli.app import _add_commands, cli


def commands_below(group: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """Yield the words and the command of everything below `group` that is not a group itself."""
    if not isinstance(group, click.Group):
        yield " ".join(words), group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands_below(command, (*words, name))


@pytest.fixture(scope="session")
def commands() -> dict[str, click.Command]:
    """All commands, such as `log cat`."""
    _add_commands()
    found = dict(commands_below(cli, ()))
    assert len(found) > 20
    return found
