"""An archive of Spark's classes as a JVM has parsed and verified them (class data sharing; JEP 310 and 350).

    python -m tests.support.spark_archive       what `make` does before tests: write the archive if there is none
    jvm_option(default_cache())                 what a JVM needs to use it, or nothing where there is no archive

A third of what a start of Spark costs is reading its classes. Tests start Spark dozens of times, and with the archive a
start takes 9 seconds of CPU instead of 12. A JVM compares the archive with itself and its jars, and does without if
they differ. The archive's name has what it was made from, so that other jars or another Java get another one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from keyfold_demo.java import QUICK_JVM, JavaMissing, default_cache, find_java, locked

_STEPS_TIMEOUT_S: Final = 300


def jvm_option(cache: Path) -> str:
    """The option of a JVM that uses the archive of this cache; empty where there is none, or no Java or pyspark."""
    try:
        archive = archive_path(cache)
    except (ImportError, JavaMissing):
        return ""
    return f"-XX:SharedArchiveFile={archive}" if archive.is_file() else ""


def archive_path(cache: Path) -> Path:
    """Where the archive for this Java and this pyspark is, made or not. Raises `ImportError` and `JavaMissing`."""
    import pyspark

    java = Path(find_java()).resolve()
    made_from = f"{java} {java.stat().st_mtime_ns} {pyspark.__file__}"
    return cache / "spark-classes" / f"{pyspark.__version__}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}.jsa"


def make(cache: Path) -> None:
    """Write the archive under its name when it is whole; do nothing if it is there."""
    archive = archive_path(cache)
    with locked(archive.parent.with_suffix(".lock")):
        if archive.is_file():
            return
        archive.parent.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        written = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off -Xlog:cds+dynamic=off {QUICK_JVM}"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": written, "SPARK_LAUNCHER_OPTS": QUICK_JVM}
        command = [sys.executable, "-m", "tests.support.spark_archive", "--steps"]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_STEPS_TIMEOUT_S, check=False
        )
        if answer.returncode == 0 and unfinished.is_file():
            unfinished.rename(archive)
        else:  # a Java without class data sharing, for instance
            print(f"tests start Spark without an archive of its classes:\n{answer.stderr[-500:]}", file=sys.stderr)


def steps() -> None:
    """Use what tests use of Spark, and wait for the JVM, which writes the archive when it ends."""
    from pyspark import SparkContext

    from keyfold_compactor.spark.session import spark_session

    with spark_session("keyfold-classes", {"spark.master": "local[2]"}) as session:
        gateway: Any = SparkContext._gateway
        session.range(100).groupBy("id").count().orderBy("id").collect()
        session.sparkContext.parallelize(range(4), 2).map(str).collect()
    process = gateway.proc
    process.stdin.close()
    process.wait(_STEPS_TIMEOUT_S)


if __name__ == "__main__":
    if sys.argv[1:] == ["--steps"]:
        steps()
    else:
        make(default_cache())
