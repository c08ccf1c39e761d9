"""What a test that runs `keyfold compact` gives it."""

from __future__ import annotations

import json
from pathlib import Path

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
        "compactor.engine": "spark",
        **{key.replace("_", "."): value for key, value in changes.items()},
    }
    path = folder / file
    path.write_text(json.dumps(values))
    return str(path)
