"""The environment of the demo: a broker, a store and a folder, all removed at the end.

    with DemoEnvironment(...) as environment:
        environment.broker, environment.s3, environment.store, environment.commands
        environment.sink_config(...), environment.compact_config(...)

All files are below one temporary folder: the broker's data, configurations, outputs, Spark's scratch space. All
processes carry `KEYFOLD_DEMO=<folder's name>` in their environment, so that a test can look for what was left behind.
Signals that ask for an end raise KeyboardInterrupt while the demo runs, and are ignored during the clean-up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from keyfold.store.api import OpenedStore
from keyfold_demo.broker import KafkaBroker
from keyfold_demo.commands import Commands
from keyfold_demo.java import QUICK_JVM
from keyfold_demo.local_s3 import LocalS3Process
from keyfold_demo.loopback import without_proxy

BUCKET: Final = "keyfold-demo"
TOPICS_DIR: Final = "topics"
MARK: Final = "KEYFOLD_DEMO"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Kafka's own cleaner is held, so that the sink finds every record; segments roll by the records' times otherwise.
TOPIC_SETTINGS: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1", "segment.ms": str(2**63 - 1)}


class DemoEnvironment:
    """The servers and files of one run of the demo. `topic` is the Kafka topic's name."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.broker: KafkaBroker
        self.s3: LocalS3Process
        self.store: OpenedStore
        self.commands: Commands
        self.folder: Path
        self._exits = ExitStack()
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def url(self) -> str:
        """The URL of the log."""
        return f"s3://{BUCKET}/{TOPICS_DIR}"

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find the store, and to keep to this environment."""
        scratch = str(self.folder / "scratch")
        return {
            **self.s3.environment,
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": scratch,
            "TMPDIR": scratch,
            "COLUMNS": "200",
        }

    def address(self) -> dict[str, Any]:
        """Describe where everything is, for exploring the running environment."""
        return {
            "pid": os.getpid(),
            "bootstrap_servers": self.broker.bootstrap_servers,
            "url": self.url,
            "topic": self.topic,
            "folder": str(self.folder),
            "environment": self.s3.environment,
        }

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, _interrupt)
        try:
            self._set_up()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def _set_up(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="keyfold-demo-"))
        self._exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "scratch").mkdir()
        self._set_environment({MARK: self.folder.name, **without_proxy(os.environ)})
        self.s3 = self._exits.enter_context(LocalS3Process())
        self.s3.create_bucket(BUCKET)
        self.broker = self._exits.enter_context(KafkaBroker(folder=self.folder))
        self.broker.create_topic(self.topic, self.partitions, TOPIC_SETTINGS)
        self.store = self.s3.location(BUCKET).open()
        self._exits.callback(self.store.close)
        self.commands = Commands(self.folder, self.environment)

    def _set_environment(self, values: dict[str, str]) -> None:
        """Set variables of this process, and so of its children, until the end."""
        before = {name: os.environ[name] for name in values if name in os.environ}
        os.environ.update(values)

        def restore() -> None:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update(before)

        self._exits.callback(restore)

    def _clear(self) -> None:
        """Close everything, and ignore further signals meanwhile."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            self._exits.close()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def sink_config(self, flush_size: int) -> Path:
        """A sink for the topic, with segments of `flush_size` records."""
        return self._write(
            "sink.json",
            {
                "name": "demo",
                "bootstrap.servers": self.broker.bootstrap_servers,
                "topics": self.topic,
                "s3.bucket.name": BUCKET,
                "topics.dir": TOPICS_DIR,
                "flush.size": str(flush_size),
            },
        )

    def compact_config(self) -> Path:
        """A compactor that waits for nothing: every delay is 0."""
        return self._write(
            "compact.json",
            {
                "s3.bucket.name": BUCKET,
                "topics.dir": TOPICS_DIR,
                "topics": self.topic,
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": "0",
                "file.delete.delay.ms": "0",
                "spark.master": "local[2]",
                "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Djava.io.tmpdir={self.folder}/scratch",
            },
        )

    def _write(self, name: str, values: dict[str, str]) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(values, indent=2) + "\n")
        return path


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
