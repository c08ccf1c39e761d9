"""`spark-submit .../keyfold_compactor/__main__.py run CONFIG --once`, or `python -m keyfold_compactor`."""

from __future__ import annotations

import sys

from keyfold.cli import main

if __name__ == "__main__":
    main(["compact", *sys.argv[1:]])
