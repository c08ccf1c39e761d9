"""The command `keyfold`.

app                              finds the command, runs it, and turns the outcome into an exit code
usage, common_options            errors of the command line; options of every command
log_options                      options of several commands about logs
context                          stores, clock and chance, which commands get as arguments
request_log                      the requests that a command makes, as log events
log, cat, verify, export, restore
                                 the commands of the library; services add theirs by entry points
output, typed                    manifests and records as text and JSON; decoded keys and values
log_table, segment_strip         the table of `log list`, and the strip of `log describe`
"""

from keyfold.cli.app import main

__all__ = ["main"]
