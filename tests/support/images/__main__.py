"""`make images-try`: build both images without docker, and start from them what they are for.

Servers are the tests' own (Kafka, moto); programs run as a container would have them (`tests.support.chroot`). Prints
a line for each thing that holds, and ends with exit code 1 at the first that does not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keyfold.errors import KeyfoldError
from keyfold_demo.broker import KafkaBroker
from keyfold_demo.java import default_cache
from keyfold_demo.local_s3 import LocalS3Process
from tests.support.images.build import build, check_tools
from tests.support.images.compactor_story import tell_compactor
from tests.support.images.sink_story import tell_sink
from tests.support.images.stage import Stage, look

T = TypeVar("T")


def main() -> int:
    folder = default_cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_tools()
        sink = timed("build the sink's image", lambda: build("sink", folder))
        compactor = timed("build the compactor's image", lambda: build("compactor", folder))
        for image in (sink, compactor):
            print(f"{image.name}: {size_mib(image.root):,} MiB")
            look(image)
        with KafkaBroker() as broker, LocalS3Process() as store, Stage(broker, store) as stage:
            timed("sink", lambda: tell_sink(sink, stage))
            timed("compactor", lambda: tell_compactor(compactor, stage))
    except (KeyfoldError, AssertionError, subprocess.CalledProcessError) as error:
        print(f"FAILED: {error}; logs of the builder are in {folder}", file=sys.stderr)
        return 1
    return 0


def timed(what: str, act: Callable[[], T]) -> T:
    begun = time.monotonic()
    done = act()
    print(f"{what}: {time.monotonic() - begun:.0f} s", flush=True)
    return done


def size_mib(root: Path) -> int:
    printed = subprocess.run(
        ["du", "--summarize", "--one-file-system", root], capture_output=True, text=True, check=True
    )
    return int(printed.stdout.split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
