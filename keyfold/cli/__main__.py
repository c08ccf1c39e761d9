"""`python -m keyfold.cli` is the command `keyfold`."""

from keyfold.cli.app import main

main()
