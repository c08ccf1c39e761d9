"""A Spark program over S3A, run as a process of its own: jars must be on its class path when its JVM starts.

    python -m tests.support.spark_over_s3 <folder of jars> <working folder> <url> <topic>

Prints one JSON document: which root `auto` chose, and the offsets of `read_log` and `latest_state`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    from keyfold.spark import latest_state, read_log
    from keyfold.spark.dataframe.paths import choose_engine
    from keyfold_demo.stock_spark import spark_session

    libs, work, url, topic = sys.argv[1:]
    session = spark_session(Path(libs), Path(work))
    try:
        root = choose_engine(session, url, "auto", None)
        answer = {
            "root": None if root is None else root.uri,
            "log": sorted([r.partition, r.offset] for r in read_log(session, url, topic).collect()),
            "latest": sorted([r.partition, r.offset] for r in latest_state(session, url, topic).collect()),
        }
        sys.stdout.write(json.dumps(answer) + "\n")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
