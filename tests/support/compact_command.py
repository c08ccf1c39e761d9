"""What a test that runs `keyfold compact` gives it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from keyfold.cli.app import Surroundings, open_by_url, run
from keyfold.clock import SystemClock
from keyfold.store.s3 import S3Location
from tests.support.moto import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY

NO_SPARK = "there-is-no-such-master"
"""A `spark.master` at which every attempt to start Spark fails."""


def config(folder: Path, location: S3Location, *, file: str = "compact.json", **changes: str) -> str:
    """A configuration file for the topic `users`; `_` in a key is `.`."""
    values = {
        "s3.bucket.name": location.bucket,
        "s3.region": REGION,
        "store.url": str(location.endpoint_url),
        "aws.access.key.id": ACCESS_KEY_ID,
        "aws.secret.access.key": SECRET_ACCESS_KEY,
        "topics": "users",
        **{key.replace("_", "."): value for key, value in changes.items()},
    }
    path = folder / file
    path.write_text(json.dumps(values))
    return str(path)


def here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `keyfold ...` in this process, where the compactor finds the Spark of the fixture `spark`.

    It is for tests in which the process itself plays no part: no JVM starts.
    """
    words = list(map(str, arguments))
    out, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            code = run(words, Surroundings(open_by_url, SystemClock(), Random()))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())
