"""Spark with Iceberg's jar, in a Python that has a Spark for which Iceberg has a release.

    python -m tests.support.table_spark FOLDER

Each line of stdin is the location of a table's metadata file, or code as a JSON string. The answer is a line of JSON:
for a location partition, offset, key and the value's field `id` of every row that the version shows, and for code its
`state`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.bench.peers.on_spark import IcebergPeer, SparkPeer


class Reader(IcebergPeer):
    """A session in which `s3://` is S3A, too: so do the paths in a table's metadata begin."""

    own_settings: ClassVar = {
        **IcebergPeer.own_settings,
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }


def main() -> None:
    """Read tables until stdin ends."""
    with Reader.opened("", Path(sys.argv[1])) as peer:
        # The session was made in another thread, and Iceberg's reader looks for that of its own.
        jvm: Any = peer.spark.sparkContext._jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(peer.spark._jsparkSession)
        for line in sys.stdin:
            found = _ran(peer, json.loads(line)) if line.startswith('"') else _read(peer, line.strip())
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


def _read(peer: SparkPeer, location: str) -> list[tuple[Any, ...]]:
    rows = peer.spark.read.format("iceberg").load(location)
    return [tuple(row) for row in rows.selectExpr("partition", "offset", "hex(key)", "value.id").collect()]


def _ran(peer: SparkPeer, code: str) -> list[tuple[str, int]]:
    names: dict[str, Any] = {"spark": peer.spark}
    exec(code, names)  # noqa: S102 - an example of docs/table.md
    return [(bytes(key).hex(), number) for key, number in names["state"]]


if __name__ == "__main__":
    main()
