"""The command `keyfold`.

app                              finds the command, runs it, and turns the outcome into an exit code
context                          stores, clock and chance, which commands get as arguments
log, verify, export, restore     the commands of the library; services add theirs by entry points
show, typed                      manifests and records as text and JSON; decoded keys and values
"""

from keyfold.cli.app import main

__all__ = ["main"]
