"""A real Kafka broker on this machine, for a demo or a test, gone when the `with` ends.

    with KafkaBroker() as broker:
        broker.create_topic("users", partitions=2, config={"cleanup.policy": "compact"})
        ... broker.bootstrap_servers ...

One node in KRaft mode on two free ports of 127.0.0.1, its data in its own temporary folder. Topics are made on purpose
only (`auto.create.topics.enable=false`). The cleaner is a quick one, so that a test can watch Kafka's own compaction.
A port that somebody else takes between the choice and the start costs one more try, not the run.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, free_port
from keyfold_demo.java import default_cache, find_java, kafka_jars

_STARTS: Final = 3
_START_TIMEOUT_S: Final = 90.0
_STOP_TIMEOUT_S: Final = 20.0

_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "message.max.bytes": "16777216",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.retention.check.interval.ms": "1000",
}


class KafkaBroker:
    """A broker process. `bootstrap_servers` once it is entered; `log_path` says what it complained about."""

    def __init__(
        self,
        *,
        cache: Path | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        folder: Path | None = None,
    ) -> None:
        self._cache = cache or default_cache()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._heap_mb = heap_mb
        self._parent = folder
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """Where this broker keeps its files while it runs; topic data is in `data/<topic>-<partition>`."""
        if self._folder is None:
            raise KeyfoldError("the broker is not running")
        return self._folder

    @property
    def log_path(self) -> Path:
        """The broker's standard output and error."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        if self._process is None:
            raise KeyfoldError("the broker is not running")
        return self._process.pid

    @property
    def admin(self) -> AdminClient:
        """A client for topics, settings and offsets."""
        if self._admin is None:
            raise KeyfoldError("the broker is not running")
        return self._admin

    def start(self) -> None:
        """Start and wait until it answers; at most 90 s a try. Raises `JavaMissing` or `KeyfoldError`."""
        java, jars = find_java(), kafka_jars(self._cache)
        self._folder = Path(tempfile.mkdtemp(prefix="keyfold-broker-", dir=self._parent))
        try:
            for attempt in range(1, _STARTS + 1):
                try:
                    self._launch(java, jars)
                except KeyfoldError:
                    self._end_process()
                    if attempt == _STARTS:
                        raise
                else:
                    return
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM, after 20 s SIGKILL, then remove its files. Stopping twice is no error."""
        self._admin = None
        self._end_process()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic and wait until its partitions have a leader. One that is there already is an error."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self.admin.create_topics([topic], operation_timeout=30)[name].result(60)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self.admin.list_topics(name, timeout=30).topics[name]
            if len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values()):
                return
            time.sleep(0.02)
        raise KeyfoldError(f"topic {name} was created, but its {partitions} partitions found no leader within 30 s")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait for the answer."""
        self.admin.delete_topics([name], operation_timeout=30)[name].result(60)

    def _launch(self, java: str, jars: Path) -> None:
        self.port, controller_port = free_port(), free_port()
        properties = self._write_properties(controller_port)
        base = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A first character of `-` would be taken for an option.
        cluster_id = "k" + cluster_id[1:]
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        tool = [*base, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "-t", cluster_id]
        formatted = subprocess.run(
            [*tool, "-c", str(properties)], capture_output=True, text=True, check=False, timeout=_START_TIMEOUT_S
        )
        if formatted.returncode != 0:
            raise KeyfoldError(f"Kafka's storage could not be formatted:\n{formatted.stdout}{formatted.stderr}")
        heap = [f"-Xms{min(256, self._heap_mb)}m", f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*death_with_parent(), *base[:1], *heap, *base[1:], "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for whoever started the broker, and he stops it
            )
        self._wait()

    def _write_properties(self, controller_port: int) -> Path:
        settings = self._settings | {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": str(self.folder / "data"),
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _wait(self) -> None:
        """First the port, then an answer: a client that knocks too early complains aloud."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(self.port):
            self._check_alive()
            if time.monotonic() > deadline:
                raise KeyfoldError(f"the broker did not open its port within {_START_TIMEOUT_S:.0f} s{self._tail()}")
            time.sleep(0.05)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        while True:
            try:
                if admin.list_topics(timeout=5).brokers:
                    break
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise KeyfoldError(f"the broker gives no metadata: {error}{self._tail()}") from error
            self._check_alive()
        self._admin = admin

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise KeyfoldError(f"the broker ended with exit code {self._process.returncode}{self._tail()}")

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n" + "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])
        return ""

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
