"""The command `keyfold`."""

from keyfold.cli.app import main

__all__ = ["main"]
