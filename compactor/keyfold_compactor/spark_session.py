"""Spark as a run needs it: an existing session (spark-submit, a notebook), or a quiet local one.

In local mode everything listens on loopback and the workers run this very interpreter. On a cluster executors get the
code as one zip of the installed packages (`addPyFile` cannot take a wheel); they need pyarrow, numpy, boto3 and
fastavro, which hold native code and so belong into the image.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

PACKAGES: Final = ("keyfold", "keyfold_compactor", "keyfold_schemas")
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextlib.contextmanager
def spark_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session with `settings` (keys with `spark.`); stopped at the end unless it was there before."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Under spark-submit its options are in the JVM that waits for us; without it SparkConf would see none of them.
        SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public way
    conf = SparkConf()
    if not conf.contains("spark.master") or "spark.master" in settings:
        conf.set("spark.master", settings.get("spark.master", "local[*]"))
    is_local = str(conf.get("spark.master")).startswith("local")
    defaults = {**_QUIET, **(_LOOPBACK if is_local else {})}
    if is_local:
        # Spark takes the workers' interpreter from the environment alone, and `python3` from PATH without it.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in {**defaults, **settings}.items():
        if key in settings or not conf.contains(key):
            conf.set(key, value)
    if not conf.contains("spark.app.name"):
        conf.set("spark.app.name", name)
    session = _started(conf)
    try:
        with TemporaryDirectory(prefix="keyfold-") as folder:
            if not is_local:
                session.sparkContext.addPyFile(str(code_zip(Path(folder))))
            yield session
    finally:
        session.stop()


def _started(conf: SparkConf) -> SparkSession:
    """A session. SIGINT stays with whoever has it: pyspark would make an interrupt of it, in the middle of a commit."""
    if threading.current_thread() is not threading.main_thread():
        return SparkSession.builder.config(conf=conf).getOrCreate()
    handler = signal.getsignal(signal.SIGINT)
    try:
        return SparkSession.builder.config(conf=conf).getOrCreate()
    finally:
        signal.signal(signal.SIGINT, handler)


def code_zip(folder: Path) -> Path:
    """The installed packages as a zip that Python imports from."""
    path = folder / "keyfold.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            origin = importlib.import_module(package).__file__
            assert origin is not None
            root = Path(origin).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, Path(package, file.relative_to(root)))
    return path


def driver_addresses(session: SparkSession) -> tuple[str, str]:
    """The address at which tasks reach the driver, and the one to listen at (behind NAT they differ)."""
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host
