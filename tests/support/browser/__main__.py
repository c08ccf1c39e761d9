"""Drive the pages of `keyfold serve` in a real Chromium, and compare them with the pictures of the documentation.

    python -m tests.support.browser [--update]

`drive` has what must hold of each page. It runs in a Python of its own, in .cache/browser, which has playwright and
axe-core; Chromium is the system's (Debian: apt install chromium). `--update` writes docs/images/serve-*.png.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from shutil import copyfile

import click
import matplotlib.image
import numpy as np

from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create, ObjectStore
from tests.support.logs import MadeLog
from tests.support.moto import LocalS3Process
from tests.support.root import ROOT

BUCKET = "pages"
PYTHON = ROOT / ".cache/browser/bin/python"
IMAGES = ROOT / "docs/images"
PICTURES = ("serve-topics", "serve-map", "serve-key")
DIFFERENCE_MAX = 0.05
"""Mean difference of all pixels, of 1. Another font differs by about 0.02, another page by 0.1."""

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
_DAY_MS = 86_400_000


def fill(store: ObjectStore) -> None:
    """Write logs of every kind that a page shows."""
    random = Random(5)
    for number in range(4):
        clock = ManualClock(1_790_000_000_000)
        made = MadeLog(store=store, place=Place("topics", "users", number), clock=clock, block_bytes=4096)
        for _ in range(9):
            _append(made, random, 200 + 400 * random.randrange(3))
            clock.advance(_DAY_MS)
        made.compact()
        for _ in range(3):
            _append(made, random, 300)
    hostile = MadeLog(store=store, place=Place("topics", "hostile", 0))
    hostile.append([Record(n, 1, CREATE_TIME, HOSTILE.encode(), HOSTILE.encode()) for n in range(3)])
    damaged = MadeLog(store=store, place=Place("topics", "damaged", 0))
    damaged.append([Record(0, 1, CREATE_TIME, b"a", b"1")])
    manifests = [found.key for found in store.list("topics/damaged/") if "manifest" in found.key]
    store.delete(manifests[-1])
    store.put(manifests[-1], b"no manifest", Create())
    for number in range(1000):
        MadeLog(store=store, place=Place("topics", "wide", number)).append([Record(0, 1, CREATE_TIME, b"a", b"1")])
    partitions = [
        {"topic": "users", "partition": n, "state": "RUNNING", "next_offset": 10 * n, "end_offset": 40}
        for n in range(4)
    ]
    task = {"number": 0, "state": "RUNNING", "partitions": partitions}
    status = {"worker_id": "sink-0", "reported_ms": 1_790_000_000_000, "tasks": [task]}
    store.put("topics/_sinks/users/workers/sink-0.json", json.dumps(status).encode(), Create())


def _append(made: MadeLog, random: Random, count: int) -> None:
    start = 0 if made._sink is None else made.manifest.next_offset
    batch = []
    for n in range(start, start + count):
        value = None if random.random() < 0.05 else b'{"name":"customer %d","visits":%d}' % (n, random.randrange(99))
        batch.append(Record(n, 1_790_000_000_000 + n, CREATE_TIME, b"user-%d" % random.randrange(2000), value))
    made.append(batch)


def difference(one: Path, other: Path) -> float:
    """Mean difference of two pictures; 1 if they have not the same size."""
    a, b = (matplotlib.image.imread(path)[..., :3].astype(float) for path in (one, other))
    return float(np.abs(a - b).mean()) if a.shape == b.shape else 1.0


@click.command(help=__doc__)
@click.option("--update", is_flag=True, help="write the pictures of the documentation")
def main(update: bool) -> None:
    """Start the server, drive it, compare."""
    with LocalS3Process() as s3, tempfile.TemporaryDirectory() as folder:
        s3.create_bucket(BUCKET)
        store = s3.location(BUCKET).open()
        fill(store)
        command = [f"{Path(sys.executable).parent}/keyfold", "serve", f"s3://{BUCKET}/topics", "--listen"]
        environment = {**os.environ, **s3.environment}
        server = subprocess.Popen([*command, "http://127.0.0.1:0"], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server did not start"
            driven = subprocess.run(
                [PYTHON, "-m", "tests.support.browser.drive", found[0], folder], cwd=ROOT, check=False
            )
        finally:
            server.terminate()
            server.wait()
        wrong = driven.returncode != 0
        for name in PICTURES:
            made, kept = Path(folder) / f"{name}.png", IMAGES / f"{name}.png"
            if update:
                copyfile(made, kept)
            found_difference = difference(made, kept)
            click.echo(f"{name}: differs by {found_difference:.3f} from docs/images")
            wrong |= found_difference > DIFFERENCE_MAX
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
