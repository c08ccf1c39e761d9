"""The lines of Spark's JVM: no noise of its start, every error, and all of a start that fails."""

from __future__ import annotations

import os
import threading

import pytest

from keyfold_compactor.spark.jvm_output import FAILED_LINES, JvmOutput, is_noise

NOISE = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    'Setting default log level to "WARN".',
    'Setting Spark log level to "ERROR".',
    "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
    "26/11/23 19:12:09 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...",
    "26/11/23 19:12:09 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    ":: loading settings :: url = jar:file:/spark/jars/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml",
    "Ivy Default Cache set to: /spark/ivy",
    "org.apache.spark#spark-avro_2.13 added as a dependency",
    "\tfound org.tukaani#xz;1.10 in central",
]
REAL = [
    "26/11/23 19:12:09 ERROR SparkContext: Error initializing SparkContext.",
    "java.lang.OutOfMemoryError: Java heap space",
    "/usr/bin/java: No such file or directory",
    "JAVA_HOME is not set",
    "\t\t:: UNRESOLVED DEPENDENCIES         ::",
]


class Heard:
    """What was passed on; `wait_for` waits for a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._came = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._came:
            self.lines.append(line)
            self._came.notify_all()

    def wait_for(self, line: str) -> None:
        with self._came:
            assert self._came.wait_for(lambda: line in self.lines, 60), self.lines


def written(output: JvmOutput, *lines: str) -> int:
    """Write as a JVM that stays alive; its end of the pipe."""
    fd = os.dup(output.write_fd)
    os.write(fd, "".join(f"{line}\n" for line in lines).encode())
    return fd


@pytest.mark.parametrize("line", NOISE)
def test_lines_of_every_start_are_noise(line: str) -> None:
    assert is_noise(line)


@pytest.mark.parametrize("line", REAL)
def test_errors_are_no_noise(line: str) -> None:
    assert not is_noise(line)


def test_a_quiet_start_that_succeeds_shows_only_errors_and_later_everything_but_noise() -> None:
    heard = Heard()
    output = JvmOutput(heard, is_quiet=True)
    warning = "26/11/23 19:12:09 WARN SomeClass: during the start"
    fd = written(output, *NOISE, warning, REAL[0])
    output.launched()
    assert heard.lines == []
    os.write(fd, b"end of the start\n")
    output.started()
    os.write(fd, f"{NOISE[5]}\n26/11/23 19:13:09 WARN SomeClass: later\n".encode())
    os.close(fd)
    heard.wait_for("26/11/23 19:13:09 WARN SomeClass: later")
    # What the thread had not read yet when Spark had started is passed on as later lines are.
    assert [line for line in heard.lines if line != warning] == [
        REAL[0],
        "end of the start",
        "26/11/23 19:13:09 WARN SomeClass: later",
    ]


def test_a_start_on_a_cluster_says_what_it_waits_for() -> None:
    heard = Heard()
    output = JvmOutput(heard, is_quiet=False)
    fd = written(output, "26/11/23 19:12:09 INFO Client: state: ACCEPTED")
    output.launched()
    heard.wait_for("26/11/23 19:12:09 INFO Client: state: ACCEPTED")
    os.close(fd)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_start_that_fails_returns_its_lines_and_shows_none(is_quiet: bool) -> None:
    heard = Heard()
    output = JvmOutput(heard, is_quiet=is_quiet)
    os.close(written(output, *NOISE, "Exception in thread", "\tat org.apache.Spark.main(Spark.scala:1)", *REAL))
    assert list(output.failed()) == ["Exception in thread", *REAL]
    assert heard.lines == []


def test_an_error_has_the_last_lines_of_many() -> None:
    output = JvmOutput(Heard(), is_quiet=True)
    os.close(written(output, *(f"line {n}" for n in range(100))))
    assert list(output.failed()) == [f"line {n}" for n in range(100 - FAILED_LINES, 100)]
