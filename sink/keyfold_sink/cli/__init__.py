"""`keyfold sink`: run a sink, check its configuration, control a running one.

commands            the group
run, validate       the commands with a configuration
control, client     the commands that ask a running sink, and what sends their requests
status_text, watch  what they print
arguments           what commands share
"""

from keyfold_sink.cli.commands import sink

__all__ = ["sink"]
