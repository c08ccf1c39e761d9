"""Arguments and options that several commands of `keyfold sink` share."""

from __future__ import annotations

from pathlib import Path

import click

config_argument = click.argument(
    "config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG"
)
