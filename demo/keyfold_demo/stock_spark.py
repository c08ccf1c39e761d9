"""Read a list of Avro objects with Spark as it is, and print the rows as JSON: `python -m keyfold_demo.stock_spark`.

Nothing of keyfold reads here: the paths come in on stdin, one a line, as `keyfold log files` prints them; the store's
address and credentials from the usual AWS variables. It is a program of its own, so that its JVM ends with it.

    row    {"offset": 7, "key": "README.md", "value": "..." or null}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from keyfold_demo.java import QUICK_JVM

# The short name `avro` needs a jar that Maven Central does not have for this Spark; the class is in Spark itself.
AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"


def local_settings(work: Path) -> dict[str, str]:
    """Files in `work`, S3A with the address and the credentials of the environment."""
    return {
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
        "spark.hadoop.fs.s3a.access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.buffer.dir": str(work),
    }


def spark_session(s3a_libs: Path, work: Path) -> SparkSession:
    """Two local cores, everything on loopback, files in `work`, S3A with the credentials of the environment."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": f"{s3a_libs}/*",
        "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Djava.io.tmpdir={work}",
        **local_settings(work),
    }
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    """Arguments: the folder with the S3A jars, a working folder."""
    libs, work = (Path(argument) for argument in sys.argv[1:3])
    paths = [line.strip().replace("s3://", "s3a://", 1) for line in sys.stdin if line.strip()]
    session = spark_session(libs, work)
    try:
        frame = session.read.format(AVRO).load(paths)
        for row in frame.select("offset", "key", "value").orderBy("offset").toLocalIterator():
            line = {"offset": row.offset, "key": _text(row.key), "value": _text(row.value)}
            sys.stdout.write(json.dumps(line) + "\n")
    finally:
        session.stop()


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode()


if __name__ == "__main__":
    main()
