"""`python -m keyfold_sink ...` is `keyfold sink ...`: how the supervisor starts its tasks."""

import sys

from keyfold.cli import main

main(["sink", *sys.argv[1:]])
