"""`keyfold replica`: one module for each group of commands, `show` for what they print."""

from keyfold_compactor.replica.cli.commands import replica

__all__ = ["replica"]
