"""A standalone Spark cluster on loopback: a master and a worker, which starts executors as processes of its own.

    with SparkCluster(folder) as cluster:
        driver = cluster.start("run", config, "--once")     # spark-submit --master cluster.url --py-files <zip>
        out, errors = cluster.finish(driver)

Nothing of it can import this checkout: driver and executors run a Python that has the libraries alone, and keyfold
comes to them as the zip that `make dist` makes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from keyfold_compactor.spark.code_zip import write_for_submit
from keyfold_demo.children import death_with_parent, end, free_port
from keyfold_demo.java import QUICK_JVM

READY_S: Final = 90.0
DRIVER_S: Final = 240.0
EXECUTOR: Final = "CoarseGrainedExecutorBackend"


def bare_python(folder: Path) -> Path:
    """A Python that has this one's libraries, but not what is installed here as a checkout.

    Site packages that are a line of a .pth file are searched, but their own .pth files, of which ours is one, are not.
    """
    venv.create(folder, symlinks=True)
    found = next(folder.glob("lib/python*/site-packages"))
    (found / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return folder / "bin" / "python"


def spark_home() -> Path:
    """Where this interpreter's pyspark has its jars and scripts."""
    import pyspark

    return Path(str(pyspark.__file__)).parent


def clean_environment(python: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a machine of the cluster knows: no path of ours, no credentials, loopback alone."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYTHON", "PYSPARK", "SPARK"))
    }
    return {
        **env,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_PUBLIC_DNS": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": str(python),
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        **(extra or {}),
    }


class SparkCluster:
    """One master, one worker; see the module."""

    def __init__(self, folder: Path, *, cores: int = 2) -> None:
        self._folder = folder
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = bare_python(folder / "python")
        self.script, self.code = write_for_submit(folder / "dist")
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._env = clean_environment(self.python)

    def __enter__(self) -> Self:
        port = self.url.rpartition(":")[2]
        at = ("--host", "127.0.0.1", "--webui-port", "0")
        try:
            self._start("master", "master.Master", *at, "--port", port)
            work = str(self._folder / "work")
            self._start("worker", "worker.Worker", *at, "--cores", str(self._cores), "-m", "2g", "-d", work, self.url)
            self._wait("worker", "Successfully registered with master")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, which ends its executors, then the master."""
        while self._processes:
            end(self._processes.pop())

    def command(self, *arguments: str | Path, conf: Mapping[str, str] | None = None) -> list[str]:
        """spark-submit with the zip and the script; what follows are arguments of `keyfold compact`."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            **(conf or {}),
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        return [
            str(spark_home() / "bin" / "spark-submit"),
            *("--master", self.url, "--py-files", str(self.code)),
            *options,
            str(self.script),
            *map(str, arguments),
        ]

    def start(self, *arguments: str | Path, conf: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The command, running in an empty folder. It writes to files: it could fill a pipe before anybody reads it."""
        cwd = self._folder / "driver"
        cwd.mkdir(exist_ok=True)
        words = self.command(*arguments, conf=conf)
        with self._log("driver-out").open("wb") as out, self._log("driver-errors").open("wb") as errors:
            return subprocess.Popen(words, cwd=cwd, env=self._env, stdout=out, stderr=errors)

    def finish(self, driver: subprocess.Popen[bytes]) -> tuple[str, str]:
        """What the started command wrote to standard output and standard error, once it has ended."""
        try:
            driver.wait(DRIVER_S)
        finally:
            driver.kill()  # does nothing to one that has ended
        return self.told("driver-out"), self.told("driver-errors")

    def told(self, name: str) -> str:
        """What a process has written up to now."""
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs that run now: children of the worker."""
        worker = self._processes[1].pid
        return [pid for pid in children(worker) if EXECUTOR in command_line(pid)]

    def executor_logs(self) -> list[Path]:
        """What executors have written to their standard output and error."""
        return [path for path in (self._folder / "work").glob("*/*/std*") if path.is_file()]

    def kill_executor(self, pid: int) -> None:
        """SIGKILL, for a process that our worker has started."""
        assert pid in self.executors()
        os.kill(pid, signal.SIGKILL)

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        words = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with self._log(name).open("wb") as out:
            process = subprocess.Popen(
                [*death_with_parent(), *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._env
            )
        self._processes.append(process)

    def _wait(self, name: str, words: str) -> None:
        until_s = time.monotonic() + READY_S
        while words not in (text := self.told(name)):
            if time.monotonic() > until_s or self._processes[-1].poll() is not None:
                raise RuntimeError(f"Spark's {name} did not start:\n{text[-3000:]}")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def children(pid: int) -> list[int]:
    """Processes that a process has started and that run."""
    found = []
    for task in Path("/proc", str(pid), "task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:  # the thread has just ended
            continue
    return found


def command_line(pid: int) -> str:
    """A process's words; empty when it is gone."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def keyfold_by_zip(
    cluster: SparkCluster, *arguments: str | Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """`keyfold ...` with the Python of the cluster and the code from the zip."""
    return subprocess.run(
        [str(cluster.python), "-c", "from keyfold.cli import main; main()", *map(str, arguments)],
        env=clean_environment(cluster.python, {**env, "PYTHONPATH": str(cluster.code)}),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
