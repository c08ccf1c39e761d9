"""`keyfold replica`, and the round after a run of the compactor: what other packages find by entry points.

commands, run, compaction, promote    the commands
config, locations, environment        their options and arguments, and what they need to run
show                                  what they print
holds                                 the removal of a replica's holds, with its messages
after_run                             the round after a run of the compactor
"""

from keyfold_replicator.cli.commands import replica

__all__ = ["replica"]
