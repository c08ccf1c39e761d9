"""Records of every kind that Kafka accepts, and the acknowledged ones, with which a sink's log is compared.

Four topics, 64 partitions: times of creation and of appending, transactions of which some are aborted, and a topic that
is to be compacted (but not now). Keys are missing, empty and repeated; values are null, empty, small and now and then
large; headers are missing, repeated, null, empty and bytes that are no text. One partition of each topic is hot.

`Ledger` holds a fingerprint of each record that Kafka has acknowledged (for a transaction: that was committed), by
partition and offset.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from keyfold.log.record import TIMESTAMP_TYPES, Record

Key = tuple[str, int]
Headers = list[tuple[str, bytes | None]]

_TICK_S: Final = 0.05
_ANSWER_S: Final = 120
_HOT_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of topic."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    is_transactional: bool = False
    needs_keys: bool = False


KINDS: Final = (
    Kind("plain", 24),
    Kind("stamped", 16, {"message.timestamp.type": "LogAppendTime"}),
    Kind("ledger", 16, is_transactional=True),
    Kind("state", 8, {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}, needs_keys=True),
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of this kind, with its name on the broker."""

    name: str
    kind: Kind

    @property
    def keys(self) -> list[Key]:
        """Return its partitions."""
        return [(self.name, partition) for partition in range(self.kind.partitions)]


def fingerprint(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]], kind: str, timestamp: int
) -> bytes:
    """Return a fingerprint, the same only for equal records."""
    told = repr((key, value, [tuple(header) for header in headers], kind, timestamp))
    return blake2b(told.encode(), digest_size=16).digest()


def fingerprint_of(record: Record) -> bytes:
    """Return the fingerprint of a record of the log or of a plain consumer."""
    return fingerprint(record.key, record.value, record.headers, record.timestamp_type, record.timestamp)


class Ledger:
    """The acknowledged records: fingerprints by offset, by partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[Key, dict[int, bytes]] = {}
        self._doubted: list[list[tuple[Key, int, bytes]]] = []
        self.aborted = 0
        self.transactions: Counter[str] = Counter()

    def doubt(self, rows: list[tuple[Key, int, bytes]]) -> None:
        """Add the records of a transaction whose result is unknown."""
        self._doubted.append(rows)

    def settle(self, in_kafka: Callable[[Key], Iterable[int]]) -> None:
        """Read from Kafka which unknown transactions were committed: each as a whole, or not at all."""
        doubted, self._doubted = self._doubted, []
        for rows in doubted:
            there = [offset in set(in_kafka(key)) for key, offset, _ in rows]
            assert all(there) or not any(there), "half a transaction is in the topic"
            if all(there):
                self.add(rows)

    def add(self, rows: Iterable[tuple[Key, int, bytes]]) -> None:
        with self._lock:
            for key, offset, print_ in rows:
                assert offset not in self._rows.setdefault(key, {}), f"{key} has two records at {offset}"
                self._rows[key][offset] = print_

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._rows.values()))

    def of(self, key: Key) -> dict[int, bytes]:
        with self._lock:
            return dict(self._rows.get(key, {}))

    def last_offsets(self) -> dict[Key, int]:
        with self._lock:
            return {key: max(rows) for key, rows in self._rows.items()}


def _headers(random: Random) -> Headers:
    names = ("trace", "trace", "", "ü", "source", "x" * 40)
    values = (None, b"", b"\xff\x00\xfe", b"text", b"v" * random.randrange(60))
    return [(random.choice(names), random.choice(values)) for _ in range(random.choice((0, 0, 0, 1, 2, 5)))]


def _value(random: Random, number: int) -> bytes | None:
    chance = random.random()
    if chance < 0.06:
        return None
    if chance < 0.08:
        return b""
    if chance < 0.081:
        return random.randbytes(60_000)
    return b"%d " % number + random.randbytes(random.randrange(10, 120)).hex().encode()


def _key(random: Random, needed: bool) -> bytes | None:
    chance = random.random()
    if chance < 0.03 and not needed:
        return None
    return b"" if chance < 0.04 else b"key-%d" % random.randrange(500)


def arguments(random: Random, topic: Topic, number: int) -> dict[str, Any]:
    """Return the arguments of `Producer.produce` for one record."""
    hot = random.random() < _HOT_SHARE
    given: dict[str, Any] = {
        "topic": topic.name,
        "partition": 0 if hot else random.randrange(topic.kind.partitions),
        "key": _key(random, topic.kind.needs_keys),
        "value": _value(random, number),
        "timestamp": 1_700_000_000_000 + number * 7 - random.randrange(10_000),
    }
    headers = _headers(random)
    return given | {"headers": headers} if headers else given


MakeRecord = Callable[[Random, Topic, int], dict[str, Any]]


class Loader(threading.Thread):
    """One producer at a fixed rate; a transactional one commits or aborts about five times a second."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[Topic],
        ledger: Ledger,
        *,
        per_s: float,
        seed: int,
        make_record: MakeRecord = arguments,
    ) -> None:
        super().__init__(daemon=True, name=f"loader-{seed}")
        self.error: BaseException | None = None
        self._topics = topics
        self._ledger = ledger
        self._per_s = per_s
        self._make_record = make_record
        self._random = Random(seed)
        self._number = 0
        self._over = threading.Event()
        self._fresh: list[tuple[Key, int, bytes]] = []
        self._refused: list[str] = []
        self._is_transactional = topics[0].kind.is_transactional
        self._bootstrap_servers = bootstrap_servers
        self._producer = self._open()

    def finish(self) -> None:
        """Stop, and wait for the last acknowledgements. Raise the loader's error."""
        self._over.set()
        self.join(_ANSWER_S * 2)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            if self._is_transactional:
                self._persist(lambda: self._producer.init_transactions(30))
            begun = time.monotonic()
            while not self._over.wait(_TICK_S):
                due = int((time.monotonic() - begun) * self._per_s) - self._number
                # After a while in which the broker was away there is much to catch up with, but not all at once.
                due = min(due, int(self._per_s))
                if self._is_transactional:
                    self._transaction(max(1, due))
                else:
                    self._produce(due)
                    self._take()
            assert self._producer.flush(_ANSWER_S) == 0
            self._take()
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self.error = error

    def _produce(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            given = self._make_record(self._random, self._random.choice(self._topics), self._number)
            while True:
                try:
                    self._producer.produce(**given, on_delivery=self._noting(given))
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _noting(self, given: Mapping[str, Any]) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._refused.append(error.str())
                return
            kind, timestamp = message.timestamp()  # the broker's own where it stamps
            key = (given["topic"], given["partition"])
            print_ = fingerprint(
                given["key"], given["value"], given.get("headers", ()), TIMESTAMP_TYPES[kind], timestamp
            )
            self._fresh.append((key, message.offset() or 0, print_))

        return note

    def _take(self) -> None:
        assert not self._refused, self._refused[:3]
        fresh, self._fresh = self._fresh, []
        self._ledger.add(fresh)

    def _transaction(self, count: int) -> None:
        """Begin, produce, and commit or abort. If the producer fails, replace it, which aborts the open transaction."""
        will_commit = self._random.random() >= 0.25
        was_asked = False
        try:
            self._producer.begin_transaction()
            self._produce(count)
            if not will_commit and self._random.random() < 0.5:
                self._producer.flush(_ANSWER_S)  # so that aborted records are in the topic
            if will_commit:
                was_asked = True
                self._persist(lambda: self._producer.commit_transaction(30))
                self._take()
                self._ledger.transactions["committed"] += 1
                return
            self._persist(lambda: self._producer.abort_transaction(30))
            self._ledger.transactions["aborted"] += 1
        except KafkaException as error:  # also where the broker gave the transaction up while records went into it
            in_doubt = was_asked and not error.args[0].txn_requires_abort()
            self._ledger.transactions["in doubt" if in_doubt else "aborted"] += 1
            if in_doubt:
                self._ledger.doubt(self._fresh)
            self._producer = self._open()
            self._persist(lambda: self._producer.init_transactions(30))
        self._ledger.aborted += count
        self._fresh, self._refused = [], []

    def _persist(self, call: Callable[[], object]) -> None:
        """Retry while the broker does not answer, as the result of a commit must be known."""
        deadline = time.monotonic() + _ANSWER_S * 2
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _open(self) -> Producer:
        own = {"transactional.id": self._topics[0].name} if self._is_transactional else {"enable.idempotence": True}
        return Producer({"bootstrap.servers": self._bootstrap_servers, "linger.ms": 10, "log_level": 2, **own})


class Load:
    """All loaders, which run during the `with` block."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[Topic],
        *,
        per_s: float,
        seed: int,
        make_record: MakeRecord = arguments,
    ) -> None:
        self.ledger = Ledger()
        in_transactions = [topic for topic in topics if topic.kind.is_transactional]
        others = [topic for topic in topics if not topic.kind.is_transactional]
        share = per_s / len(topics)
        self._loaders = [
            Loader(
                bootstrap_servers,
                group,
                self.ledger,
                per_s=share * len(group),
                seed=seed + number,
                make_record=make_record,
            )
            for number, group in enumerate((others, in_transactions))
            if group
        ]

    def __enter__(self) -> Self:
        for loader in self._loaders:
            loader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for loader in self._loaders:
            try:
                loader.finish()
            except BaseException:
                if error is None:
                    raise

    def check(self) -> None:
        """Raise the error of a failed loader."""
        for loader in self._loaders:
            if loader.error is not None:
                raise loader.error
