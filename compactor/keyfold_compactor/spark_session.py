"""Spark as a run needs it: an existing session (a notebook), spark-submit's, or a quiet local one.

In local mode Spark is quiet, everything listens on loopback and the workers run this very interpreter. On a cluster its
UI and its log are the cluster's business. Executors there get the code as a zip of the installed packages (`addPyFile`
cannot take a wheel); they need pyarrow, numpy, boto3 and fastavro, which hold native code and so belong into the image.
Code that came as a zip itself (`--py-files`) is shipped by Spark already.

Whose setting holds: spark-submit's (its options, its spark-defaults.conf), then `settings`, then ours.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as pyspark_version
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession, SQLContext

from keyfold_compactor.code_zip import is_shipped, write_code_zip
from keyfold_compactor.spark_versions import check_jvm

log = structlog.get_logger(__name__)

JVM_ENDS_S: Final = 10
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def is_given() -> bool:
    """Whether Spark was started by somebody else: spark-submit or its like, or a session that runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or _running() is not None


def _running() -> SparkSession | None:
    """The session that is there already; one for the context, where there is only that."""
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way
        return SparkSession.builder.getOrCreate()
    return active


@contextlib.contextmanager
def spark_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session with `settings` (keys with `spark.`); stopped at the end unless it was there before.

    Raises `ConfigError` where the JVM is another Spark's than pyspark's.
    """
    running = _running()
    if running is not None:
        if settings:
            log.warning("settings ignored: a spark session is already running", settings=sorted(settings))
        check_jvm(running.version, pyspark_version)
        yield running
        return
    conf = _conf(name, settings)
    _prove_jvm(conf)
    session = _started(conf)
    try:
        with TemporaryDirectory(prefix="keyfold-") as folder:
            if not _is_local(conf) and not is_shipped():
                session.sparkContext.addPyFile(str(write_code_zip(Path(folder) / "keyfold.zip")))
            yield session
    finally:
        _end(session)


def _conf(name: str, settings: Mapping[str, str]) -> SparkConf:
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if is_submitted:
        # Under spark-submit its options are in the JVM that waits for us; without it SparkConf would see none of them.
        SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public way
    conf = SparkConf()
    overruled: list[str] = []
    for key, value in settings.items():
        if not (is_submitted and conf.contains(key)):
            conf.set(key, value)
        elif conf.get(key) != value:
            overruled.append(key)
    if overruled:
        log.warning("settings ignored: spark-submit sets them too", settings=sorted(overruled))
    if not conf.contains("spark.master"):
        conf.set("spark.master", "local[*]")
    is_local = _is_local(conf)
    if is_local:
        # Spark takes the workers' interpreter from the environment alone, and `python3` from PATH without it.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in {**({**_QUIET, **_LOOPBACK} if is_local else {}), "spark.app.name": name}.items():
        if not conf.contains(key):
            conf.set(key, value)
    return conf


def _prove_jvm(conf: SparkConf) -> None:
    """Start the JVM, or reach it, and refuse another Spark's before pyspark trips over what that does not have."""
    gateway = SparkContext._gateway or _launched(conf)  # noqa: SLF001 - there is no public way
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    check_jvm(str(getattr(jvm.org.apache.spark, "package").SPARK_VERSION()), pyspark_version)  # noqa: B009 - a word of Python's


def _launched(conf: SparkConf) -> Any:
    """Start a JVM in a session of its own; the one that waits for us, under spark-submit, is reached.

    A terminal's Ctrl-C and a supervisor's SIGTERM go to a whole process group. A JVM in ours would end under the batch
    that we end gracefully. It still ends when we do: it reads its standard input, a pipe from us, until that is closed.
    """
    launch: Callable[..., Any] = launch_gateway  # pyspark does not annotate it
    return launch(conf, popen_kwargs={"start_new_session": True})


def _is_local(conf: SparkConf) -> bool:
    master = str(conf.get("spark.master"))
    return master == "local" or master.startswith("local[")


def is_alive(session: SparkSession) -> bool:
    """Whether a session's context can run jobs: its JVM answers, and has not been told by its cluster to stop."""
    context = session.sparkContext._jsc  # noqa: SLF001 - there is no public way
    if context is None:
        return False
    try:
        return not context.sc().isStopped()
    except Exception:  # noqa: BLE001 - py4j raises what it likes when its JVM is gone
        return False


def _end(session: SparkSession) -> None:
    """Stop a session of ours. Where its JVM has died pyspark is made to forget it, so that a new one can begin."""
    if is_alive(session):
        session.stop()
        return
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        session.sparkContext.stop()  # also closes what pyspark listens at in this process
    with contextlib.suppress(Exception):
        session.stop()
    # pyspark keeps all of these for the life of the process, and has no way to give them up.
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    if hasattr(SparkSession, "_activeSession"):
        SparkSession._activeSession = None  # noqa: SLF001
    SQLContext._instantiatedContext = None  # noqa: SLF001
    gateway = SparkContext._gateway  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    with contextlib.suppress(Exception):
        gateway.shutdown()
    _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """A JVM that pyspark started ends when its standard input does; one that does not is ended."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(JVM_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _started(conf: SparkConf) -> SparkSession:
    """A session, started by a thread of its own: in the main one pyspark would take SIGINT from whoever has it.

    Its handler raises an exception, in the middle of a commit perhaps.
    """
    with ThreadPoolExecutor(1, "keyfold-spark") as pool:
        return pool.submit(SparkSession.builder.config(conf=conf).getOrCreate).result()


def driver_addresses(session: SparkSession) -> tuple[str, str]:
    """The address at which tasks reach the driver, and the one to listen at (behind NAT they differ)."""
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host
