"""What each service does with a bucket, played once over an `IamS3`, which records the requests of each.

Each scene takes the users that its stores are opened with. What is rare is provoked: answers that are lost, uploads in
parts, objects that were orphaned, keys that are not there.
"""

from __future__ import annotations

import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import BytesIO, TextIOWrapper
from random import Random
from threading import Event
from typing import Final

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.names import FIRST_COPY_NAME, Place, Role, new_name
from keyfold.log.objects import PART_BYTES, ObjectStream
from keyfold.log.record import Record
from keyfold.log.replica_first_copy import FirstCopy
from keyfold.read.log import Log
from keyfold.read.stored_directory import SUFFIX, directories
from keyfold.restore.run import Restore, RestoreRequest
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import MIN_PART_BYTES, Create, ObjectStore, StoreLocation
from keyfold.store.location import parse_url
from keyfold.store.pacing import Pacer
from keyfold.store.probe import probe
from keyfold.store.s3 import S3Location, S3Store
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.key_directories import keeping
from keyfold_compactor.options import CompactOptions
from keyfold_demo.faults import DROP, Fault
from keyfold_sink.status import RunState, TaskStatus, WorkerStatus
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder, take_slot
from keyfold_sink.worker.log_end_offsets import LogEndOffsets
from keyfold_sink.worker.worker_registry import WorkerRegistry, leave_quietly
from tests.support.cleaning import record as noisy
from tests.support.cleaning import retry_policy
from tests.support.fake_topic import FakeTopic
from tests.support.iam import Policy
from tests.support.iam_recorder import KEY_ARN, IamS3
from tests.support.logs import MadeLog, record, records
from tests.support.moto import REGION
from tests.support.served import served
from tests.support.sink_rig import T0, rigs
from tests.support.sink_world import FakeCluster

TOPICS_DIR: Final = "topics"
TABLES_DIR: Final = "tables"
TOPIC: Final = "t"
SINK: Final = "users"
"""The sink's name."""
PLACE: Final = Place(TOPICS_DIR, TOPIC, 0)
BEGUN: Final = Place(TOPICS_DIR, "begun", 0)
"""A replica's partition whose first copy is not complete."""
ROOT: Final = "root"
"""A user that is not known, who may do everything."""

LOST: Final = (r"\.avro", r"\.parquet", r"_manifest\.avro")
_KEPT: Final = '{"type": "string"}'


def policies(bucket: str, *names: str, topics: str = "*", sink: str = SINK) -> list[Policy]:
    """Policies of `infra/iam` for a bucket; `topics` and `sink` are the patterns that Terraform's roles take."""
    values = {"BUCKET": bucket, "TOPICS_DIR": TOPICS_DIR, "TABLES_DIR": TABLES_DIR}
    values |= {"KMS_KEY_ARN": KEY_ARN, "REGION": REGION}
    return [Policy.load(name, values | {"TOPICS": topics, "SINK": sink}) for name in names]


class Stage:
    """A bucket, and stores that are opened by users."""

    def __init__(self, s3: IamS3, bucket: str) -> None:
        self.s3 = s3
        self.bucket = bucket
        self._open: list[S3Store] = []

    def location(self, user: str) -> S3Location:
        """The bucket, for a user."""
        return S3Location(
            self.bucket, region=REGION, endpoint_url=self.s3.url, access_key_id=user, secret_access_key="none of it"
        )

    @property
    def url(self) -> str:
        """Of the log directory."""
        return f"s3://{self.bucket}/{TOPICS_DIR}"

    def store(self, user: str) -> S3Store:
        """The bucket, open."""
        self._open.append(self.location(user).open())
        return self._open[-1]

    def made_log(self, topic: str = TOPIC, partition: int = 0) -> MadeLog:
        """A log of another writer."""
        place = Place(TOPICS_DIR, topic, partition)
        return MadeLog(self.store(ROOT), place, SystemClock(), Random(topic))

    def keep_versions(self) -> None:
        """From now on the bucket keeps versions."""
        client = self.s3.client()
        client.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        client.close()

    def close(self) -> None:
        """Close all stores."""
        for store in self._open:
            store.close()


def large(start: int, end: int) -> list[Record]:
    """Records of 1.2 MB that nothing makes smaller: eight of them are more than a part."""
    noise = Random(start)
    return [noisy(n, f"k{n}", noise.randbytes(1_200_000)) for n in range(start, end)]


# The sink


def sink(stage: Stage, user: str) -> None:
    """A sink's life: start, records and rolls, lost answers, a large segment, orders, other workers, its end."""
    store = stage.store(user)
    probe(store, TOPICS_DIR, SystemClock(), Random(1))
    next(iter(store.list(f"{TOPICS_DIR}/")), None)  # what `keyfold sink validate` asks
    _sink_task(stage, store)
    _sink_schemas(store)
    _sink_workers(stage, user)
    _sink_ends(store)


def _sink_task(stage: Stage, store: S3Store) -> None:
    with rigs() as make:
        rig = make(store, segment__ms="100")
        rig.kafka.tell("on_assign", T0)
        rig.until(rig.runs)
        rig.kafka.produce(T0, range(100))
        rig.until(lambda: rig.next_offset() == 100)
        lost = [
            Fault(r"^PUT .*-s[0-9a-f]+\.avro$", DROP, applied=True),
            Fault(r"^PUT .*-s[0-9a-f]+\.parquet", DROP, applied=True),
            Fault(r"^PUT .*_manifest", DROP, applied=True),
        ]
        stage.s3.set_faults(*lost)
        rig.kafka.produce(T0, range(100, 200))
        rig.until(lambda: rig.next_offset() == 200)
        stage.s3.set_faults()
    with rigs() as make:  # on again, where the last segment says when it was written; and more than a part
        rig = make(store, flush__size="10")
        stage.s3.set_faults(Fault(r"^POST .*uploadId", DROP, applied=True))
        rig.kafka.produce(T0, range(200))
        rig.kafka.produce(T0, range(200, 210), Random(5).randbytes(1024 * 1024))
        rig.kafka.tell("on_assign", T0)
        rig.until(lambda: rig.next_offset() == 210)
    stage.s3.set_faults()


def _sink_schemas(store: S3Store) -> None:
    archive = SchemaArchive(store, TOPICS_DIR)
    for _ in range(2):
        archive.add(7, _KEPT, "http://registry")


class _Worker:
    """A worker that only answers the search for workers."""

    def __init__(self, store: ObjectStore, clock: ManualClock, name: str) -> None:
        random = Random(name)
        self.document = DesiredStateDocument(store, sink_folder(TOPICS_DIR, SINK), clock, random)
        self.roll = WorkerRegistry(
            store, sink_folder(TOPICS_DIR, SINK), self.document, name, clock=clock, random=random
        )

    def turn(self) -> None:
        self.roll.update(
            lambda: WorkerStatus(self.roll.worker_id, self.roll.slot, 1, "0.1", 0, (TaskStatus(0, RunState.RUNNING),))
        )


def _sink_workers(stage: Stage, user: str) -> None:
    clock = ManualClock()
    one, other = (_Worker(stage.store(user), clock, name) for name in ("one", "other"))
    for _ in range(2):
        for worker in (one, other):
            worker.turn()
        clock.advance(60_000)
    one.roll.others(fresh=True)
    one.document.change(take_slot("third"))
    leave_quietly(other.roll)


def _sink_ends(store: S3Store) -> None:
    cluster = FakeCluster()
    cluster.ends = {(TOPIC, 0): 300}
    ends = LogEndOffsets(store, TOPICS_DIR, cluster, SystemClock(), Random(3))
    ends.places(ends.topics())


# The compactor


def compactor(stage: Stage, user: str) -> None:
    """Passes over a log with garbage, orphans and a replica; a large output; an unavailable log."""
    Buckets(stage, stage, ROOT, ROOT)("replica", "add", stage.url, "dr", "--to", stage.url, "--no-probe")
    made = stage.made_log()
    made.append([record(0, "a", "1"), *large(1, 9)])
    made.append([record(9, "a", None)])
    _orphans(stage, made)
    one = job(stage.store(user))
    one.prove_store()
    for _ in range(2):
        one.once()


def directories_kept(stage: Stage, user: str) -> None:
    """Directories of keys: the first, its successor, and large ones, which are sent in parts or given up."""
    made = stage.made_log()
    store, clock = stage.store(user), SystemClock()
    for start in (0, 2):
        made.append(records("a=1 b=2", start))
        _keep_directory(stage, user)
    assert len(directories(store, PLACE)) == 1
    for number, end in enumerate((ObjectStream.finish, ObjectStream.abandon)):
        key = f"{PLACE.key_directories}{0:020d}-{number:016x}{SUFFIX}"
        stream = ObjectStream(store, key, RetryPolicy(clock, Random(1)))
        stream.write([bytes(2 * PART_BYTES)])
        end(stream)


def _keep_directory(stage: Stage, user: str) -> None:
    """Write the directory of the log's newest version."""
    config = {"s3.bucket.name": stage.bucket, "topics.dir": TOPICS_DIR, "topics": TOPIC, "keys.directory": "true"}
    opener = partial(_opened, stage, user)
    with keeping(CompactOptions.parse(config), clock=SystemClock(), random=Random(1), opener=opener) as keep:
        (done,) = keep(lambda: False)
    assert not done.is_failure, done.lines


def _opened(stage: Stage, user: str, _location: StoreLocation, _pacer: Pacer | None) -> S3Store:
    return stage.store(user)


def sinks_shown(stage: Stage, user: str) -> None:
    """The page of sinks: a sink's state, and a status of a worker."""
    root = stage.store(ROOT)
    root.put(f"{TOPICS_DIR}/_sinks/{SINK}/workers/one.json", b"{}", Create())
    assert served(stage.store(user)).get("/ui/sinks").status_code == 200


def _orphans(stage: Stage, made: MadeLog) -> None:
    """What dead processes leave: objects and uploads of epochs that were claimed since."""
    store, random = stage.store(ROOT), Random(4)
    made.log.claim_compactor(lease_ms=0, holder="dead")
    manifest = made.manifest
    for role in Role:
        name = new_name(manifest.next_offset, manifest.role(role).epoch, role, random)
        for key in (made.place.key(str(name)), made.place.key(str(name.index))):
            store.put(key, b"left", Create())
        upload = store.start_upload(made.place.key(str(new_name(0, manifest.role(role).epoch, role, random))))
        upload.write(b"x" * MIN_PART_BYTES)
    made.log.claim_compactor(lease_ms=0, holder="dead too")
    made._sink = made.log.claim_sink()


def job(store: S3Store) -> Job:
    clock = SystemClock()
    config = {
        "s3.bucket.name": store.bucket,
        "topics.dir": TOPICS_DIR,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
    }
    return Job(
        CompactOptions.parse(config),
        RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(),
    )


# Replicas: the commands, as they are called


class Buckets:
    """`keyfold` between two buckets, each opened by a user of its own (`replica` None: the source's user does both)."""

    def __init__(self, source: Stage, replica: Stage, source_user: str, replica_user: str) -> None:
        self.source, self.replica = source, replica
        self.source_url, self.replica_url = source.url, replica.url
        self._users = {source.bucket: source_user, replica.bucket: replica_user}
        self._world = CliContext(self._open_url, SystemClock(), Random(), self._open)
        self._stores: dict[str, S3Store] = {}

    def __call__(self, *args: str, code: int | None = 0) -> str:
        """Run `keyfold <args>`; what it printed. It has to end with `code`."""
        printed = TextIOWrapper(BytesIO(), encoding="utf-8")
        with redirect_stdout(printed), redirect_stderr(printed):
            ended = run([*args], self._world)
        printed.flush()
        said = printed.buffer.getvalue().decode()
        assert code is None or ended == code, (args, said)
        return str(said)

    def _open_url(self, url: str) -> tuple[ObjectStore, str]:
        bucket, folder = parse_url(url)
        return self._opened(bucket), folder

    def _open(self, location: StoreLocation, pacer: Pacer | None) -> ObjectStore:
        return self._opened(location.bucket)

    def _opened(self, bucket: str) -> S3Store:
        if bucket not in self._stores:
            stage = self.source if bucket == self.source.bucket else self.replica
            self._stores[bucket] = store = stage.store(self._users[bucket])
            store.close = lambda: None  # type: ignore[method-assign]  # commands close what they open; the stage does here
        return self._stores[bucket]


def registered(keyfold: Buckets) -> None:
    """Register the replica, with what it needs to take compacted logs."""
    keyfold("replica", "add", keyfold.source_url, "dr", "--to", keyfold.replica_url, "--set", "file.delete.delay.ms=0")
    keyfold("replica", "enable-compaction", keyfold.source_url, "dr")


def replicated(keyfold: Buckets) -> None:
    """Rounds: small and large objects, lost answers, what passes replaced, what died in the middle."""
    keyfold.source.made_log(BEGUN.topic).append(records("a=1"))
    keyfold.replica.store(ROOT).put(BEGUN.key(FIRST_COPY_NAME), b"of a version before", Create())
    made = keyfold.source.made_log()
    SchemaArchive(keyfold.source.store(ROOT), TOPICS_DIR).add(1, _KEPT, "")
    made.append(records("a=1 b=2"))
    keyfold.source.s3.set_faults(*(Fault(f"^PUT /{keyfold.replica.bucket}/.*{end}$", applied=True) for end in LOST))
    keyfold("replica", "run", keyfold.source_url, "--once")
    keyfold.source.s3.set_faults()
    entry = made.append([*large(2, 10), record(10, "a", "2")])
    _half_sent(keyfold, entry.name)
    keyfold("replica", "run", keyfold.source_url, "--once")
    made.compact()
    keyfold("replica", "run", keyfold.source_url, "--once")
    time.sleep(2.1)  # what passes replaced goes by the store's clock, which has whole seconds
    made.append([record(11, "a", "3")])
    for _ in range(2):
        keyfold("replica", "run", keyfold.source_url, "--once")
    keyfold("replica", "status", keyfold.source_url, "dr")


def _half_sent(keyfold: Buckets, name: str) -> None:
    """What a replicator leaves that dies in the middle: of a segment to come, and of one that is gone."""
    root = keyfold.replica.store(ROOT)
    root.start_upload(PLACE.key(name)).write(b"x" * MIN_PART_BYTES)
    gone = new_name(0, 0, Role.SINK, Random(1))
    root.start_upload(PLACE.key(str(gone))).write(b"x" * MIN_PART_BYTES)


def paused(keyfold: Buckets) -> None:
    """What needs no right but to the registrations: to see them, to pause and resume a replica, to change it unseen."""
    source = keyfold.source_url
    keyfold("replica", "list", source)
    keyfold("replica", "pause", source, "dr")
    keyfold("replica", "resume", source, "dr")
    keyfold("replica", "edit", source, "dr", "--topics", TOPIC, "--no-probe")


def operated(keyfold: Buckets) -> None:
    """What people ask for: changes of the registration, a switch there and back, an end."""
    source, replica = keyfold.source_url, keyfold.replica_url
    made = keyfold.source.made_log()
    made.append([record(0, "a", "1"), *large(1, 9)])  # one user for both: the store copies
    registered(keyfold)
    keyfold("replica", "list", source)
    keyfold("replica", "edit", source, "dr", "--topics", TOPIC)
    keyfold("replica", "pause", source, "dr")
    keyfold("replica", "resume", source, "dr")
    keyfold("replica", "run", source, "--once")
    keyfold("replica", "resync", source, "dr")
    keyfold("replica", "disable-compaction", replica)
    keyfold("replica", "enable-compaction", replica)
    keyfold("replica", "promote", source, "dr")
    back = keyfold.source.bucket  # what the promotion has called it
    keyfold("replica", "add", replica, back, "--to", source)
    keyfold("replica", "edit", replica, back, "--topics", TOPIC)
    keyfold("replica", "enable-compaction", source)
    keyfold("replica", "run", replica, "--once")
    keyfold("replica", "remove", replica, back)


# Readers, restores, repairs


def reader(stage: Stage, user: str) -> None:
    """All ways to read: lists, ordered reads, the latest state, following, verifying; and where there is nothing."""
    made = stage.made_log()
    for text, start in (("a=1 b=2 a=", 0), ("c=3 d=4", 3)):
        made.append(records(text, start))
    made.compact()
    SchemaArchive(stage.store(ROOT), TOPICS_DIR).add(1, _KEPT, "")
    keyfold = Buckets(stage, stage, user, user)
    url = keyfold.source_url
    keyfold("log", "list", url)
    keyfold("log", "describe", url, TOPIC)
    keyfold("log", "cat", url, TOPIC)
    keyfold("log", "cat", url, TOPIC, "--from-timestamp", "2000")
    keyfold("log", "cat", url, TOPIC, "--latest", "--value-format", "json", code=None)
    keyfold("log", "files", url, TOPIC)
    _keep_directory(stage, ROOT)
    keyfold("log", "get", url, TOPIC, "d")
    keyfold("log", "verify", url, TOPIC)
    keyfold("log", "describe", url, "nothing", code=1)
    marker = FirstCopy("dr", "s3://source/topics", "a-log", 1, 1, 1000)
    stage.store(ROOT).put(BEGUN.key(FIRST_COPY_NAME), marker.as_bytes(), Create())
    assert "0 of 1 segments" in keyfold("log", "describe", url, BEGUN.topic, code=1)
    store = stage.store(user)
    log = Log(store, TOPICS_DIR, TOPIC)
    assert len(list(log.read(0))) == 4
    seen = Event()
    follower = log.follow(0, stop=seen)
    for _ in range(4):
        next(follower)
    threading.Timer(1.5, seen.set).start()
    assert next(follower, None) is None  # it has looked for more
    _schemas_read(store)


def _schemas_read(store: ObjectStore) -> None:
    archive = SchemaArchive(store, TOPICS_DIR)
    assert [archive.text(key) for key in archive.keys()] == [_KEPT]  # noqa: SIM118 - it is no dict


def tabled(logs: Stage, lake: Stage, user: str) -> None:
    """A table's life: small and large files, hidden rows, lost answers, merging, what dead syncs left, its end."""
    made = logs.made_log()
    made.append(records("a=1 b=2"))
    keyfold = Buckets(logs, lake, user, user)
    table = f"s3://{lake.bucket}/{TABLES_DIR}/t"
    sync = ("table", "sync", keyfold.source_url, TOPIC, "--to", table)
    keyfold(*sync)
    made.append([*large(2, 10), record(10, "a", None)])
    logs.s3.set_faults(*(Fault(f"^PUT /{lake.bucket}/.*{end}$", applied=True) for end in (r"\.parquet", r"\.avro")))
    keyfold(*sync)
    logs.s3.set_faults()
    keyfold("table", "status", table)
    keyfold("table", "verify", keyfold.source_url, TOPIC, table)
    lake.store(ROOT).start_upload(f"{TABLES_DIR}/t/data/partition=0/dead.parquet").write(b"x" * MIN_PART_BYTES)
    time.sleep(2.1)  # the store's clock has whole seconds
    keyfold("table", "merge", table, "--files-max", "1", "--hidden-max", "0", "--keep-seconds", "0")
    keyfold("table", "drop", table, "--yes")


def restored(stage: Stage, journal: Stage, user: str) -> None:
    """A log into a topic, by two runs that keep their journal in the bucket `journal`."""
    stage.made_log().append(records("a=1 b=2 c=3"))
    clock, topic = SystemClock(), FakeTopic(name=TOPIC)
    for seed in (1, 2):
        log = Log(stage.store(user), TOPICS_DIR, TOPIC, clock=clock, random=Random(seed))
        store = journal.store(user)
        one = Restore(
            log,
            topic,
            RestoreRequest(TOPIC),
            clock=clock,
            random=Random(seed),
            holder=f"run {seed}",
            journal_store=store,
        )
        outcome = one.run(one.preview())
        assert not outcome.failures, outcome.failures


def repaired(stage: Stage, user: str) -> None:
    """A manifest that was deleted, and one that was damaged; from its versions, and from the segments."""
    root = stage.store(ROOT)
    keyfold = Buckets(stage, stage, user, user)
    made = stage.made_log()
    made.append(records("a=1 b=2"))
    made.compact()
    root.delete(PLACE.manifest_key)
    keyfold("log", "repair", keyfold.source_url, TOPIC, "--partition", "0")
    root.delete(PLACE.key(made.manifest.segments[0].index_name))
    root.delete(PLACE.manifest_key)
    root.put(PLACE.manifest_key, b"no manifest", Create())
    arguments = ("--partition", "0", "--replace-damaged", "--from", "segments")
    keyfold("log", "repair", keyfold.source_url, TOPIC, *arguments)
