"""Servers, configurations and what has been written, for programs that are started from an image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.request import urlopen

from keyfold_demo.broker import KafkaBroker
from keyfold_demo.children import free_port
from keyfold_demo.local_s3 import LocalS3Process
from tests.support.chroot import Container
from tests.support.images.build import Image
from tests.support.kafka import produce_all, synthetic

TOPIC: Final = "users"
RECORDS: Final = 3000
KEYS: Final = 100
WAIT_TIMEOUT_S: Final = 300.0
TOOLS: Final = ("pip", "pip3", "gcc", "cc", "make", "curl", "wget", "git")
EXECUTABLE_TMP: Final = {"/tmp": "nosuid,nodev,size=1g"}  # noqa: S108 - a mount in a container


class Stage:
    """A topic with records, two buckets, and a folder of configurations that containers have at /etc/keyfold."""

    def __init__(self, broker: KafkaBroker, store: LocalS3Process) -> None:
        self._broker = broker
        self._store = store
        self.rest_port = free_port()
        self.configurations = Path(tempfile.mkdtemp(prefix="keyfold-images-"))

    def __enter__(self) -> Self:
        self.configurations.chmod(0o755)
        self._broker.create_topic(TOPIC, 3, {"cleanup.policy": "compact"})
        rows = synthetic(RECORDS, key_count=KEYS, tombstone_share=0.05)
        produce_all(self._broker.bootstrap_servers, TOPIC, rows)
        for bucket in ("log", "log-dr"):
            self._store.create_bucket(bucket)
        store = {"s3.bucket.name": "log"}
        self._write("compact", store)
        self._write("replica", store)
        servers = {"bootstrap.servers": self._broker.bootstrap_servers, "segment.ms": "2000"}
        self._write("sink", {"name": "users", "topics": TOPIC, **store, **servers, "listeners": self.rest_url})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.configurations, ignore_errors=True)

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    def container(
        self, image: Image, more: Mapping[str, str] | None = None, scratch: Mapping[str, str] | None = None
    ) -> Container:
        environment = {**self._store.environment, **(more or {})}
        return image.container(environment, {"/etc/keyfold": self.configurations}, scratch)

    def _write(self, name: str, configuration: Mapping[str, str]) -> None:
        file = self.configurations / f"{name}.json"
        file.write_text(json.dumps(configuration))
        file.chmod(0o644)


def run(container: Container, *words: str, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
    """Run to the end. Raises `AssertionError` with the end of its output where it fails."""
    answer = subprocess.run(
        container.command(words), capture_output=True, text=True, check=False, timeout=WAIT_TIMEOUT_S * 4
    )
    assert may_fail or answer.returncode == 0, f"{' '.join(words)}: {answer.stdout[-2000:]}{answer.stderr[-4000:]}"
    return answer


def start(container: Container, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(container.command(words), stdout=out, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM to the first process of the container; the exit code."""
    first = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(first.stdout.split()[0]), signal.SIGTERM)
    return process.wait(WAIT_TIMEOUT_S)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it at once, and with its first process all that are in its namespace.

    `unshare` alone would leave them: what it asks the kernel for when it dies is forgotten where the user changes.
    """
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    for child in children.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    process.kill()
    process.wait()


def until(what: str, is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not is_so():
        tail = f"{what} did not come:\n{log.read_text(errors='replace')[-4000:]}"
        assert process.poll() is None, tail
        assert time.monotonic() < deadline, tail
        time.sleep(0.5)


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except URLError as error:
        return int(getattr(error, "code", 0))


def documents(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def say(what: str) -> None:
    print(f"  holds: {what}", flush=True)


def look(image: Image) -> None:
    """The root file system and the user, as the recipe promises them."""
    container = image.container({}, {})
    answer = run(container, "id", "-u")
    assert answer.stdout.strip() == image.user.split(":")[0]
    assert run(container, "touch", "/opt/keyfold/x", may_fail=True).returncode != 0
    assert run(container, "grep", "CapEff", "/proc/self/status").stdout.split()[1] == "0" * 16
    say(f"{image.name} runs as {image.user}, without capabilities, on a root that is read-only")
    for tool in TOOLS:
        assert run(container, "sh", "-c", f"command -v {tool}", may_fail=True).returncode != 0, tool
    for python in ("python3", "/usr/local/bin/python3"):
        assert run(container, python, "-c", "import pip", may_fail=True).returncode != 0, python
    say(f"{image.name} has none of {', '.join(TOOLS)}, and no module pip")
    others = "find / -xdev -user root -perm -o+w -type f -not -path '/proc/*' | head"
    assert run(container, "sh", "-c", others).stdout == ""
    version = run(container, "keyfold", "--version").stdout.strip()
    assert image.labels["org.opencontainers.image.version"] in version
    say(f"{image.name} is labelled {version}")
