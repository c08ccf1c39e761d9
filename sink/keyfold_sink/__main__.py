"""Run `python -m keyfold_sink ...` as `keyfold sink ...`; the supervisor starts its tasks in this way."""

import sys

from keyfold.cli import main

main(["sink", *sys.argv[1:]])
