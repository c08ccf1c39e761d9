"""What the compactor's image is for: a run in one container, Spark's driver, and an executor that works for a driver.

Each of the three cleans one partition. The executor is started as Kubernetes would start it, by the entrypoint with the
variables that Spark gives its pods; the driver's master is a standalone one without workers, so it has nobody else.
"""

from __future__ import annotations

import subprocess
from typing import Any

from keyfold_demo.children import free_port
from tests.support.images.build import Image
from tests.support.images.stage import EXECUTABLE_TMP, KEYS, Stage, documents, kill, run, say, start, status, until

EXECUTOR_SCRATCH = {**EXECUTABLE_TMP, "/opt/spark/work-dir": "nosuid,nodev,noexec,size=256m"}
RUN = ("run", "/etc/keyfold/compact.json", "--once", "--json", "--engine", "spark")


def tell_compactor(image: Image, stage: Stage) -> None:
    container = stage.container(image, scratch=EXECUTABLE_TMP)
    first = ("--partition", "0", "--master", "local[1]")
    answer = run(container, *image.entrypoint, "keyfold", "compact", *RUN, *first)
    assert outcomes(answer.stdout) == ["cleaned"]
    say("keyfold compact run --once cleans with a local Spark")
    driver = stage.container(image, {"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}, EXECUTABLE_TMP)
    words = ("--master", "local[1]", "--conf", "spark.driver.host=127.0.0.1", "/opt/keyfold/keyfold_compact.py", *RUN)
    answer = run(driver, *image.entrypoint, "driver", *words, "--partition", "1")
    assert outcomes(answer.stdout) == ["cleaned"]
    say("the entrypoint's driver does by spark-submit")
    tell_executor(image, stage)
    run(container, *image.entrypoint, "keyfold", "log", "verify", "s3://log/topics", "users")
    latest = run(
        container, *image.entrypoint, "keyfold", "log", "cat", "s3://log/topics", "users", "--latest", "--json"
    )
    assert 0.7 * KEYS < len(latest.stdout.splitlines()) <= KEYS
    say("the log verifies")
    replica = (*image.entrypoint, "keyfold", "replica")
    run(container, *replica, "enable-compaction", "s3://log-dr/topics")
    run(container, *replica, "run", "/etc/keyfold/replica.json", "--once")
    run(container, *replica, "status", "s3://log/topics", "dr", "--check")
    say("keyfold replica run carries on what was cleaned")


def tell_executor(image: Image, stage: Stage) -> None:
    master_port, driver_port, web_port = free_port(), free_port(), free_port()
    logs = {name: stage.configurations / f"{name}.log" for name in ("master", "driver", "executor")}
    plain = stage.container(image, scratch=EXECUTABLE_TMP)
    processes: list[subprocess.Popen[bytes]] = []
    spark = "/opt/spark/bin/spark-class"
    master = [spark, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    ports = ["--port", str(master_port), "--webui-port", str(web_port)]
    try:
        processes.append(start(plain, [*image.entrypoint, *master, *ports], logs["master"]))
        until("the master", lambda: status(f"http://127.0.0.1:{web_port}/json/") == 200, processes[-1], logs["master"])
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.port": str(driver_port),
            "spark.pyspark.python": "/opt/keyfold/bin/python",
            "spark.ui.enabled": "false",
        }
        words = ["--master", f"spark://127.0.0.1:{master_port}"]
        words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        command = ["keyfold", "compact", *RUN, "--partition", "2", *words]
        processes.append(start(plain, [*image.entrypoint, *command], logs["driver"]))
        until("the driver", lambda: is_open(driver_port), processes[-1], logs["driver"])
        executor = stage.container(image, executor_variables(driver_port), EXECUTOR_SCRATCH)
        processes.append(start(executor, [*image.entrypoint, "executor"], logs["executor"]))
        until("the report", lambda: processes[1].poll() is not None, processes[0], logs["executor"])
        printed = logs["driver"].read_text()
        assert processes[1].returncode == 0, printed[-4000:]
        assert outcomes(printed) == ["cleaned"], printed[-4000:]
    finally:
        for process in processes:
            kill(process)
    say("an executor started by the entrypoint does a driver's work, with keyfold's code from the driver")


def executor_variables(driver_port: int) -> dict[str, str]:
    return {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{driver_port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "images-try",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "images-try-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_LOCAL_DIRS": "/tmp/spark",  # noqa: S108 - in a container of its own
        "SPARK_JAVA_OPT_0": f"-Dspark.driver.port={driver_port}",
    }


def is_open(port: int) -> bool:
    return bool(
        subprocess.run(
            ["ss", "--listening", "--tcp", "--no-header", f"sport = :{port}"], capture_output=True, check=True
        ).stdout
    )


def outcomes(printed: str) -> list[str]:
    """Of the report; before it stand lines of the log, which are JSON as well."""
    reports: list[dict[str, Any]] = [each for each in documents(printed) if "partitions" in each]
    return [str(each["outcome"]) for each in reports[-1]["partitions"]]
