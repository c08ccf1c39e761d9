"""`keyfold replica`: one module for each group of commands, `show` for what they print."""

from keyfold_replicator.cli.commands import replica

__all__ = ["replica"]
