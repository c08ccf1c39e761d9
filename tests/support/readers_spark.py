"""Readers by Spark, for `tests.support.readers_world`: `read_log`, `latest_state`, and the data source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from keyfold.errors import SnapshotLost
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.spark import latest_state, read_log, register
from keyfold.spark.dataframe.snapshot_lost import lost_snapshot
from tests.support.reader_proof import latest_flaws, ordered_flaws, prefix_flaws, sequence_flaws
from tests.support.readers_world import TOPIC, World, ends, sound
from tests.support.spark_logs import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIGNS = ("OffsetOutOfRange", "SnapshotLost")


class MachineDied(Exception):
    """What a stream dies of now and then."""


@contextmanager
def told(what: str) -> Iterator[None]:
    """Spark's errors that say that a reader was overtaken, as one of `OVERTAKEN`."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if MachineDied.__name__ in str(error):
            raise MachineDied from error
        lost = lost_snapshot(error)
        if lost is not None:
            raise lost from error
        if any(sign in str(error) for sign in _SIGNS):
            raise SnapshotLost(TOPIC, 0, f"{what}: {str(error)[:200]}") from error
        raise


class Spark:
    """What the readers share."""

    def __init__(self, session: SparkSession, world: World, log: Log) -> None:
        self.session, self.world, self.log = session, world, log
        register(session)

    def records(self, frame: DataFrame) -> dict[int, list[Record]]:
        """The rows by partition, in order."""
        found: dict[int, list[Record]] = {partition: [] for partition in self.world.histories}
        for row in rows(frame):
            found[row[0]].append(Record(*row[1:]))
        return found

    def options(self) -> dict[str, str]:
        """For the data source."""
        location = self.world.location
        return {
            "topic": TOPIC,
            "store.url": str(location.endpoint_url),
            "s3.region": str(location.region),
            "aws.access.key.id": str(location.access_key_id),
            "aws.secret.access.key": str(location.secret_access_key),
        }

    def after(self) -> dict[int, tuple[int, int]]:
        """The log's end and first dirty offset of each partition."""
        manifests = {partition: self.log.manifest(partition) for partition in self.world.histories}
        return {partition: (m.next_offset, m.first_dirty_offset) for partition, m in manifests.items()}


class SparkLatest:
    """`latest_state`."""

    name = "latest_state"

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def turn(self, *, last: bool) -> None:
        """See `Reader.turn`."""
        spark, world = self._spark, self._spark.world
        begins = ends(spark.log, world.histories)
        with told(self.name):
            found = spark.records(latest_state(spark.session, world.url, TOPIC, store=spark.log.store))
        for partition, (end, _) in spark.after().items():
            flaws = latest_flaws(world.histories[partition], found[partition], begin=begins[partition], end=end)
            sound(flaws, self.name)


class SparkOrdered:
    """`read_log` and `spark.read.format("keyfold")`, of all or of a range."""

    def __init__(self, spark: Spark, seed: int, *, source: bool) -> None:
        self.name = "read.format" if source else "read_log"
        self._spark, self._random, self._source = spark, Random(seed), source

    def turn(self, *, last: bool) -> None:
        """See `Reader.turn`."""
        spark, histories = self._spark, self._spark.world.histories
        begins = ends(spark.log, histories)
        to_offsets: dict[int, int] = {}
        if not last and min(begins.values()) > 1 and self._random.random() < 0.3:
            to_offsets = {partition: self._random.randrange(1, begin) for partition, begin in begins.items()}
        with told(self.name):
            found = spark.records(self._frame(to_offsets))
        for partition, (end, dense) in spark.after().items():
            history, records = histories[partition], found[partition]
            if to_offsets:
                to_offset = to_offsets[partition]
                flaws = prefix_flaws(history, records, end=to_offset, horizon=end, dense_from=dense)
            else:
                flaws = ordered_flaws(history, records, begin=begins[partition], end=end, dense_from=dense)
            sound(flaws, f"{self.name} to {to_offsets}")

    def _frame(self, to_offsets: dict[int, int]) -> DataFrame:
        spark = self._spark
        if not self._source:
            return read_log(spark.session, spark.world.url, TOPIC, to_offset=to_offsets or None, store=spark.log.store)
        reader = spark.session.read.format("keyfold").options(**spark.options())
        if to_offsets:
            text = ", ".join(f'"{partition}": {offset}' for partition, offset in to_offsets.items())
            reader = reader.option("endingOffsets", f"{{{text}}}")
        return reader.load(spark.world.url)


class SparkStream:
    """`readStream.format("keyfold")` from the earliest offset, ended, failed and restarted from its checkpoint.

    Its sink keeps batches by their ids, as one does that takes each once.
    """

    name = "readStream"

    def __init__(self, spark: Spark, folder: Path, seed: int) -> None:
        self._spark, self._folder, self._random = spark, folder, Random(seed)
        self.runs_before_judgement = 4
        self.longest = 0
        self._forget()

    def _forget(self) -> None:
        self._checkpoint = self._folder / uuid.UUID(int=self._random.getrandbits(128)).hex
        self._batches: dict[int, list[Any]] = {}
        self._runs = 0

    def turn(self, *, last: bool) -> None:
        """One run of `availableNow`; after some runs, everything received is judged."""
        begins = ends(self._spark.log, self._spark.world.histories)
        fails = not last and self._random.random() < 0.4
        try:
            with told(self.name):
                self._run(fails=fails)
        except SnapshotLost:
            self._forget()
            raise
        except MachineDied:
            assert fails
            self._runs += 1
            return
        self._runs += 1
        self._judge(begins)
        if last or self._runs >= self.runs_before_judgement:
            self.longest = max(self.longest, sum(map(len, self._batches.values())))
            self._forget()

    def _run(self, *, fails: bool) -> None:
        doomed = len(self._batches) + self._random.randrange(3) if fails else -1

        def take(frame: DataFrame, batch_id: int) -> None:
            self._batches[batch_id] = rows(frame)
            if batch_id >= doomed >= 0:
                raise MachineDied

        stream = self._spark.session.readStream.format("keyfold").options(**self._spark.options())
        stream = stream.option("startingOffsets", "earliest").option("pollIntervalMs", "0")
        stream = stream.option("maxOffsetsPerTrigger", str(self._random.choice((100, 400, 100_000))))
        writer = stream.load(self._spark.world.url).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), "a run of what is available does not end"
        finally:
            query.stop()

    def _judge(self, begins: dict[int, int]) -> None:
        after = self._spark.after()
        for partition, history in self._spark.world.histories.items():
            found = [
                Record(*row[1:]) for number in sorted(self._batches) for row in self._batches[number]
                if row[0] == partition
            ]  # fmt: skip
            sound(sequence_flaws(history, found), self.name)
            horizon, dense = after[partition]
            end = max(begins[partition], found[-1].offset + 1 if found else 0)
            sound(prefix_flaws(history, found, end=end, horizon=horizon, dense_from=dense), self.name)
