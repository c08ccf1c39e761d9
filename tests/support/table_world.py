"""Two topics with a real sink, a real compactor and a table of each, which are killed at random while records arrive.

    with TableWorld(broker, registry, s3, folder, seed=1).opened() as world:
        for _ in range(30):
            for table in world.tables:
                world.sync(table)               # `keyfold table sync`, killed now and then and repeated
                world.rows_at(loaded)           # what must be in the table: the topic folded up to the named offsets

`users` has JSON values, `orders` Avro; both have four partitions, and their schemas get new fields all the time. The
broker keeps every record, and the writer remembers the acknowledged ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from keyfold.errors import LogNotFound
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.table.catalog import LoadedTable
from keyfold.table.open import existing_table
from keyfold.table.table import TableVersion
from keyfold_demo.s3_endpoint import S3Endpoint
from tests.support.avro_cases import framed
from tests.support.kafka import KafkaBroker
from tests.support.lake import Row
from tests.support.proof import TOPICS_DIR, Rig, SinkProcess, wait_for
from tests.support.schema_registry import StubRegistry

PARTITIONS: Final = 4
KEYS: Final = 400
KEYFOLD: Final = (sys.executable, "-c", "from keyfold.cli import main; main()")
_RATE_PER_S: Final = 400
_GROW_EVERY: Final = 4000
_KILL_EVERY_S: Final = (2.0, 9.0)
_COMMAND_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table of a topic: its name for the command, and the options of its first sync."""

    topic: str
    name: str
    options: tuple[str, ...]


@dataclass(slots=True)
class TableWorld:
    """Broker, store, registry, and the processes over them. `done` counts what was done to them."""

    broker: KafkaBroker
    registry: StubRegistry
    s3: S3Endpoint
    bucket: str
    folder: Path
    tables: tuple[KeptTable, ...]
    seed: int
    environ: dict[str, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _rows: dict[tuple[str, int], list[tuple[bytes, int | None]]] = field(default_factory=dict)
    _errors: list[BaseException] = field(default_factory=list)

    @contextmanager
    def opened(self) -> Iterator[TableWorld]:
        """Start all of it, with records in every partition."""
        for table in self.tables:
            self.broker.create_topic(table.topic, PARTITIONS, {"retention.ms": "-1"})
            self._rows |= {(table.topic, number): [] for number in range(PARTITIONS)}
        with ExitStack() as exits:
            sinks = [partial(self._disturb_sink, table.topic) for table in self.tables]
            for work in (self._write, *sinks, self._disturb_compactor):
                thread = threading.Thread(target=self._kept, args=(work,), daemon=True)
                thread.start()
                exits.callback(thread.join)
            exits.callback(self._is_over.set)
            yield self
        self.check()

    def check(self) -> None:
        """Raise what the writer or a process has raised."""
        if self._errors:
            raise self._errors[0]

    def sync(self, table: KeptTable, random: Random | None = None) -> None:
        """Sync a table; with `random`, kill the command now and then, and start it again."""
        options = table.options if self.done[f"synced {table.topic}"] == 0 else ()
        self._command(("table", "sync", self.url, table.topic, "--to", table.name, *options), random)
        self.done[f"synced {table.topic}"] += 1

    def merge(self, table: KeptTable, random: Random) -> None:
        """Merge, expire and collect, killed now and then as well."""
        self._command(("table", "merge", table.name, "--files-max", "4", "--keep-seconds", "60"), random)
        self.done["merged"] += 1

    def verify(self, table: KeptTable) -> None:
        """Compare a table with the log, as the command does."""
        self._command(("table", "verify", self.url, table.topic, table.name), None)

    @property
    def url(self) -> str:
        """The logs."""
        return f"s3://{self.bucket}/{TOPICS_DIR}"

    def loaded(self, table: KeptTable) -> LoadedTable:
        """Load a table."""
        with self._stores() as open_url:
            return existing_table(table.name, open_url, RetryPolicy(SystemClock(), Random(1)))[1]

    def rows_at(self, table: KeptTable, loaded: LoadedTable) -> list[Row]:
        """Return the rows that a version of a table must show: its topic, folded up to the offsets that it names."""
        with self._stores() as open_url:
            files = existing_table(table.name, open_url, RetryPolicy(SystemClock(), Random(1)))[0].files
            shown = TableVersion(files, loaded).shown
        assert set(shown) == set(range(PARTITIONS)), shown
        found: list[Row] = []
        for number, each in shown.items():
            latest: dict[bytes, tuple[int, int | None]] = {}
            for offset, (key, value) in enumerate(self._rows[table.topic, number][: each.next_offset]):
                latest[key] = offset, value
            found += [(number, offset, key, value) for key, (offset, value) in latest.items() if value is not None]
        return sorted(found)

    @contextmanager
    def _stores(self) -> Iterator[Any]:
        with ExitStack() as exits:

            def open_url(url: str) -> tuple[Any, str]:
                bucket, _, prefix = url.removeprefix("s3://").partition("/")
                store = self.s3.location(bucket).open()
                exits.callback(store.close)
                return store, prefix

            yield open_url

    def _command(self, words: tuple[str, ...], random: Random | None) -> None:
        while True:
            process = subprocess.Popen(
                (*KEYFOLD, *words),
                env={**os.environ, **self.s3.environment, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            limit_s = _COMMAND_MAX_S
            if random is not None and random.random() < 0.4:
                limit_s = random.uniform(0.5, 4.0)
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                assert limit_s < _COMMAND_MAX_S, f"{words} did not end: {said[-3000:]}"
                self.done[f"killed {words[1]}"] += 1
                continue
            assert process.returncode == 0, f"{words} ended with {process.returncode}: {said[-3000:]}"
            return

    def _kept(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by `check`
            self._errors.append(error)

    def _write(self) -> None:
        """Produce until the end. Offsets ascend without holes, because nothing is sent twice and nothing is aborted."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
        )
        makers = {table.topic: _Maker(table.topic, self.registry, self.seed) for table in self.tables}
        random, number = Random(self.seed), 0
        while not self._is_over.is_set():
            for _ in range(_RATE_PER_S // 10):
                for topic, maker in makers.items():
                    partition = random.randrange(PARTITIONS)
                    key = b"key-%d" % random.randrange(KEYS)
                    made = None if random.random() < 0.15 else number
                    value = None if made is None else maker.value(made)
                    heard = partial(self._heard, (key, made))
                    producer.produce(topic, value, key, partition, on_delivery=heard)
                number += 1
            producer.poll(0)
            self._is_over.wait(0.1)
        producer.flush(60)

    def _heard(self, row: tuple[bytes, int | None], error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        topic, number, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert number is not None
        rows = self._rows[topic, number]
        assert offset == len(rows), f"{topic}-{number}: offset {offset} after {len(rows)} records"
        rows.append(row)

    def _disturb_sink(self, topic: str) -> None:
        folder = self.folder / f"sink-{topic}"
        folder.mkdir()
        rig = Rig(self.broker, self.s3, self.bucket, folder)
        avro = {"value_converter": "avro", "value_converter_schema_registry_url": self.registry.url}
        config = rig.config(topic, flush_size=400, **(avro if topic == "orders" else {}))
        running: list[SinkProcess] = []

        def start() -> None:
            running.append(rig.start(config))

        def kill() -> None:
            running.pop().kill()

        self._disturb("sink", start, kill, lambda: running[-1].process.poll() is None)

    def _disturb_compactor(self) -> None:
        config = self.folder / "compactor.json"
        values = {
            "s3.bucket.name": self.bucket,
            "topics.dir": TOPICS_DIR,
            "compactor.engine": "local",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.2",
            "delete.retention.ms": "5000",
            "file.delete.delay.ms": "3000",
            "log.cleaner.backoff.ms": "1000",
            "log.cleaner.lease.ms": "4000",
        }
        config.write_text(json.dumps(values))
        running: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            with (self.folder / "compactor.log").open("ab") as log:
                running.append(
                    subprocess.Popen(
                        (*KEYFOLD, "compact", "run", str(config), "--json"),
                        env={**os.environ, **self.s3.environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

        def kill() -> None:
            process = running.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        self._disturb("compactor", start, kill, lambda: running[-1].poll() is None)

    def _disturb(self, name: str, start: Any, kill: Any, is_there: Any) -> None:
        """Start a process, and kill it and start it again until the end."""
        random = Random(f"{self.seed} {name}")
        start()
        while not self._is_over.wait(random.uniform(*_KILL_EVERY_S)):
            assert is_there(), f"the {name} ended by itself; see {self.folder}"
            kill()
            self.done[f"killed {name}"] += 1
            start()
            # A process that is always killed before it does anything would leave nothing to sync.
            self._is_over.wait(6.0)
        kill()

    def await_records(self) -> None:
        """Wait until every partition of every log has records."""

        def has_all() -> bool:
            self.check()
            rig = Rig(self.broker, self.s3, self.bucket, self.folder)
            try:
                keys = [(table.topic, number) for table in self.tables for number in range(PARTITIONS)]
                return all(rig.manifest(*key).next_offset > 0 for key in keys)
            except LogNotFound:
                return False

        wait_for(has_all, 120, "records in every log", 0.5)


class _Maker:
    """Makes values: JSON for `users`, Avro for other topics. Every few thousand values have a new field."""

    def __init__(self, topic: str, registry: StubRegistry, seed: int) -> None:
        self._topic = topic
        self._registry = registry
        self._random = Random(f"{seed} {topic}")
        self._age = -1
        self._schema: dict[str, Any] = {}
        self._schema_id = 0

    def value(self, number: int) -> bytes:
        """Return the value whose field `id` is `number`."""
        age = number // _GROW_EVERY
        more = [f"f{each}" for each in range(max(0, age - 3), age + 1)]
        if self._topic == "users":
            return json.dumps({"id": number, **{name: [{"x": self._random.random()}] for name in more}}).encode()
        if age != self._age:
            kind = {"type": "array", "items": "double"}
            fields = [{"name": "id", "type": "long"}, *({"name": n, "type": kind, "default": []} for n in more)]
            self._schema = {"type": "record", "name": "Order", "fields": fields}
            self._schema_id = self._registry.register(f"{self._topic}-value", self._schema)
            self._age = age
        return framed(self._schema_id, self._schema, {"id": number, **{n: [self._random.random()] for n in more}})
