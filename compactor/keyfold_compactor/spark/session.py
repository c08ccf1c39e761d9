"""A Spark session for a run: an existing one (a notebook), spark-submit's, or a quiet local one.

In local mode Spark logs little, everything listens on loopback, and workers run this Python interpreter. On a cluster,
UI and logs follow the cluster's settings. Executors get the code as a zip of the installed packages, because
`addPyFile` cannot take a wheel. They also need pyarrow, numpy, boto3 and fastavro, which contain native code and so
belong into the image. Code that came as a zip itself (`--py-files`) is already shipped by Spark.

Settings take precedence in this order: spark-submit's (its options, its spark-defaults.conf), `settings`, our defaults.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as pyspark_version
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession, SQLContext

from keyfold.errors import KeyfoldError
from keyfold.runtime.process_memory import ALLOCATOR_ENVIRONMENT
from keyfold_compactor.spark.code_zip import is_shipped, write_code_zip
from keyfold_compactor.spark.jvm_output import JvmOutput, echo_error
from keyfold_compactor.spark.versions import check_jvm

log = structlog.get_logger(__name__)

JVM_ENDS_S: Final = 10
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
}
_WORKERS: Final = {
    **{f"spark.executorEnv.{name}": value for name, value in ALLOCATOR_ENVIRONMENT.items()},
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",  # as in all commands (`keyfold.cli.app.run`)
}
_DAEMON: Final = {"spark.python.daemon.module": "keyfold_compactor.spark.worker_daemon"}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class SparkStartFailed(KeyfoldError):
    """Spark could not start; `printed` are the last lines that its JVM printed."""

    def __init__(self, cause: str, printed: Sequence[str]) -> None:
        super().__init__(
            f"Spark could not start: {cause}",
            hint="check JAVA_HOME, `spark.*` of the configuration, --master and --conf; or clean without Java and "
            "Spark: --engine local",
        )
        self.printed = tuple(printed)

    def __str__(self) -> str:
        lines = ("", "Spark printed:", *(f"  {line}" for line in self.printed)) if self.printed else ()
        return super().__str__() + "\n".join(lines)


def is_given() -> bool:
    """Whether Spark was started from outside: by spark-submit or the like, or as a session that already runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or _running() is not None


def _running() -> SparkSession | None:
    """Return the running session, or a session for the running context, if there is one."""
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way
        return SparkSession.builder.getOrCreate()
    return active


@contextlib.contextmanager
def spark_session(
    name: str, settings: Mapping[str, str], say: Callable[[str], None] = echo_error
) -> Iterator[SparkSession]:
    """Yield a session with `settings` (keys with `spark.`); stop it at the end unless it existed before.

    `say` gets the lines that a JVM of ours prints. Raise `ConfigError` if the JVM's Spark has another version than
    pyspark, and `SparkStartFailed`.
    """
    running = _running()
    if running is not None:
        if settings:
            log.warning("settings ignored: a spark session is already running", settings=sorted(settings))
        check_jvm(running.version, pyspark_version)
        yield running
        return
    conf = _conf(name, settings)
    session = _start(conf, say)
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
    for key, value in {**_defaults(is_local=is_local), "spark.app.name": name}.items():
        if not conf.contains(key):
            conf.set(key, value)
    return conf


def _defaults(*, is_local: bool) -> dict[str, str]:
    if not is_local:
        return dict(_WORKERS)
    return {**_QUIET, **_LOOPBACK, **_WORKERS, **({} if is_shipped() else _DAEMON)}


def _prove_jvm(conf: SparkConf, output: JvmOutput) -> None:
    """Start or reach the JVM, and refuse one of another Spark before pyspark fails on what it lacks."""
    gateway = SparkContext._gateway or _launched(conf, output)  # noqa: SLF001 - there is no public way
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - pyspark offers no public name for it
    jvm: Any = SparkContext._jvm  # noqa: SLF001 - pyspark offers no public name for it
    check_jvm(str(getattr(jvm.org.apache.spark, "package").SPARK_VERSION()), pyspark_version)  # noqa: B009 - a word of Python's


def _launched(conf: SparkConf, output: JvmOutput) -> Any:
    """Start a JVM in a process session of its own, or reach the one that spark-submit has started.

    A terminal's Ctrl-C and a supervisor's SIGTERM go to a whole process group. A JVM in our group would end during the
    batch that we end gracefully. It still ends with this process, because it reads its standard input, a pipe from us,
    to its end.
    """
    launch: Callable[..., Any] = launch_gateway  # pyspark does not annotate it
    outputs = {"stdout": output.write_fd, "stderr": output.write_fd}
    return launch(conf, popen_kwargs={"start_new_session": True, **outputs})


def _is_local(conf: SparkConf) -> bool:
    master = str(conf.get("spark.master"))
    return master == "local" or master.startswith("local[")


def is_alive(session: SparkSession) -> bool:
    """Whether a session's context can run jobs: its JVM answers, and its cluster has not stopped it."""
    context = session.sparkContext._jsc  # noqa: SLF001 - there is no public way
    if context is None:
        return False
    try:
        return not context.sc().isStopped()
    except Exception:  # noqa: BLE001 - py4j raises what it likes when its JVM is gone
        return False


def _end(session: SparkSession) -> None:
    """Stop a session of ours. If its JVM has died, make pyspark forget it, so that a new one can start."""
    if is_alive(session):
        session.stop()
        return
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        session.sparkContext.stop()  # also closes what pyspark listens at in this process
    with contextlib.suppress(Exception):
        session.stop()
    _forget_jvm()


def _forget_jvm() -> None:
    """End the JVM that this process started, and make pyspark forget it, so that a new one can start."""
    # pyspark keeps all of these for the life of the process, and has no way to give them up.
    SparkContext._active_spark_context = None  # noqa: SLF001 - pyspark offers no public name for it
    SparkSession._instantiatedSession = None  # noqa: SLF001 - pyspark offers no public name for it
    if hasattr(SparkSession, "_activeSession"):
        SparkSession._activeSession = None  # noqa: SLF001 - pyspark offers no public name for it
    SQLContext._instantiatedContext = None  # noqa: SLF001 - pyspark offers no public name for it
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark offers no public name for it
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - pyspark offers no public name for it
    with contextlib.suppress(Exception):
        gateway.shutdown()
    _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a JVM to end after its standard input was closed; kill it if it does not."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(JVM_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(conf: SparkConf, say: Callable[[str], None]) -> SparkSession:
    """Start the JVM and the session. Raise `ConfigError` for another Spark's JVM, and `SparkStartFailed`."""
    output = JvmOutput(say, is_quiet=_is_local(conf))
    try:
        _prove_jvm(conf, output)
        output.launched()
        session = _started(conf)
    except KeyfoldError:
        output.started()
        raise
    except Exception as error:
        _forget_jvm()
        raise SparkStartFailed(_cause(error), output.failed()) from error
    output.started()
    return session


def _cause(error: Exception) -> str:
    """Return what an error of pyspark says, in one line: for an error of Java, that of the Java exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_java = next((line[2:] for line in lines if line.startswith(": ")), "")
    return (of_java or (lines[0] if lines else type(error).__name__)).rstrip(".")


def _started(conf: SparkConf) -> SparkSession:
    """Start a session in a thread of its own: in the main thread pyspark would install its own handler for SIGINT.

    That handler raises an exception, possibly in the middle of a commit.
    """
    with ThreadPoolExecutor(1, "keyfold-spark") as pool:
        return pool.submit(SparkSession.builder.config(conf=conf).getOrCreate).result()


def driver_addresses(session: SparkSession) -> tuple[str, str]:
    """Return the address at which tasks reach the driver, and the one to listen on (they differ behind NAT)."""
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host
