"""Print the libraries that keyfold and its extras need, without keyfold: `python3 libraries.py EXTRA...`.

They are a layer of their own in the images, so that a change of the code does not install all of them anew.
"""

# ruff: noqa: INP001 - a script, of no package

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
needed = list(project["dependencies"])
for extra in sys.argv[1:]:
    needed += project["optional-dependencies"][extra]
sys.stdout.write("\n".join(needed) + "\n")
