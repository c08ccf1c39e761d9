"""The story: a git repository's history through Kafka, the sink and the compactor, and the proof that nothing is lost.

    load      the changelog into a compacted topic of a real broker
    sink      `keyfold sink run` with small segments, so that there is something to see
    compact   `keyfold compact run --once`: the first pass leaves the last record of each key, the second no tombstones;
              a third run has nothing to do
    read      `keyfold log cat`, `keyfold log verify`, and stock Spark on the list of `keyfold log files`

After each act the log is read back, and git's tree is built from its latest state. What must be true is recorded in the
summary; nothing is taken from what the services say about themselves.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.read.log import Log, open_log
from keyfold.runtime.text import count_text
from keyfold_demo.commands import Finished, Running, Watch, shown
from keyfold_demo.environment import DemoEnvironment
from keyfold_demo.java import default_cache, fetch_missing, find_java, s3a_jars
from keyfold_demo.narration import Narrator
from keyfold_demo.numbers import Logs, Snapshot, Summary, last_of_each_key, without_tombstones
from keyfold_demo.produce import produce_changes
from keyfold_demo.treeproof import Change, Facts, root_tree

TOPIC: Final = "files"
PARTITIONS: Final = 4
_SEGMENTS_PER_PARTITION: Final = 12
_SHOWN_RECORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Plot:
    """The demo's subject: a changelog and its facts."""

    facts: Facts
    repository: str
    changes: tuple[Change, ...]

    @property
    def flush_size(self) -> int:
        """Records a segment."""
        return max(1, self.facts.record_count // PARTITIONS // _SEGMENTS_PER_PARTITION)


def prepare(narrator: Narrator) -> Path:
    """Find Java and fetch the jars; return the folder of Spark's S3 jars. Raises `JavaMissing`."""
    find_java()
    cache = default_cache()
    with narrator.step("Find Java and the jars of Kafka and S3A"):
        fetch_missing(cache, narrator.say)
        return s3a_jars(cache)


class Story:
    """The steps of the demo with one changelog; the results are in `summary`."""

    def __init__(self, plot: Plot, demo_environment: DemoEnvironment, narrator: Narrator, s3a_libs: Path) -> None:
        self.summary = Summary(plot.facts, PARTITIONS)
        self._plot = plot
        self._environment = demo_environment
        self._narrator = narrator
        self._s3a_libs = s3a_libs
        self._log: Log = open_log(demo_environment.url, demo_environment.topic, store=demo_environment.store)

    def tell(self) -> Summary:
        """Run all steps. Raises `KeyfoldError` if a program fails; failed checks are in the summary."""
        self._load()
        sunk = self._sink()
        first = self._compact("Compact: the first pass removes superseded records", "after pass 1")
        self._judge_first(sunk, first)
        second = self._compact("Compact: the second pass removes the tombstones, which are now due", "after pass 2")
        self._judge_second(sunk, second)
        self._compact_again()
        self._narrator.say()
        self._narrator.table(self.summary.snapshots)
        self._narrator.say()
        spark = self._start_spark()
        try:
            self._cat(sunk, second)
            self._verify()
            self._judge_spark(spark, second)
        finally:
            spark.end()
        self._conclude()
        return self.summary

    def _load(self) -> None:
        facts = self._plot.facts
        with self._narrator.step(f"Load {self._plot.repository}'s history into topic {TOPIC}") as step:
            produce_changes(
                self._environment.broker.bootstrap_servers,
                TOPIC,
                self._plot.changes,
                config={"log_level": 3},  # a broker that has just started lets a producer wait; that is no news
                progress=lambda count: step.note(count_text(count, "record")),
            )
            records = count_text(facts.record_count, "record")
            step.result = (
                f"{records} over {PARTITIONS} partitions: key = a file's path, value = its blob, "
                f"null = deleted ({count_text(facts.tombstone_count, 'time')})"
            )
        self.summary.seconds["load"] = step.seconds

    def _sink(self) -> Logs:
        config = str(self._environment.sink_config(self._plot.flush_size))
        self._run("Sink the topic into the bucket", "sink", "sink", "run", config, "--until-caught-up")
        logs = self._snapshot("sunk")
        loaded = _by_key((c.key, c.value, c.timestamp_ms) for c in self._plot.changes)
        found = _by_key((r.key, r.value, r.timestamp) for records in logs.values() for r in records)
        self.summary.check("the sink wrote every record of the topic once, in order", holds=found == loaded)
        return logs

    def _compact(self, title: str, moment: str) -> Logs:
        config = str(self._environment.compact_config())
        self._run(title, moment, "compact", "run", config, "--once")
        return self._snapshot(moment)

    def _compact_again(self) -> None:
        """Check that a run with nothing to do commits nothing."""
        config = str(self._environment.compact_config())
        before = [self._log.manifest(p).version for p in self._log.partitions()]
        self._run(
            "Compact: a third run has nothing to do, so it commits nothing",
            "run 3",
            "compact",
            "run",
            config,
            "--once",
        )
        after = [self._log.manifest(p).version for p in self._log.partitions()]
        self.summary.check("a run with nothing to do commits nothing", holds=before == after)

    def _run(self, title: str, name: str, *arguments: str) -> Finished:
        """Run one `keyfold` command as a step."""
        with self._narrator.step(title) as step:
            finished = self._environment.commands.keyfold(*arguments, watch=self._watch(step.note))
        self._narrator.command(self._shown(arguments), finished.out.splitlines())
        self.summary.seconds[name] = finished.seconds
        return finished

    def _watch(self, note: Callable[[str], None]) -> Watch:
        """Count the bucket's objects while a command runs, if the output is live."""
        if not self._narrator.is_live:
            return lambda: None
        return lambda: note(f"{count_text(len(self._sizes()), 'object')} in the bucket")

    def _shown(self, arguments: Iterable[str]) -> str:
        """Return a command line with short file names."""
        return shown(*(a.removeprefix(f"{self._environment.folder}/") for a in arguments))

    def _sizes(self) -> list[int]:
        return [info.size_bytes for info in self._environment.store.list("")]

    def _snapshot(self, title: str) -> Logs:
        """Read the whole log back, and count."""
        partitions = self._log.partitions()
        latest = {r.key or b"": r.value or b"" for p in partitions for r in self._log.latest(p)}
        manifests = [self._log.manifest(p) for p in partitions]
        tree = _tree_of(latest)
        snapshot = Snapshot.of(title, manifests, self._sizes(), tree)
        self.summary.snapshots.append(snapshot)
        return {p: list(self._log.read(p)) for p in partitions}

    def _judge_first(self, sunk: Logs, now: Logs) -> None:
        facts = self._plot.facts
        self.summary.check(
            f"pass 1 kept exactly the last record of each of the {facts.key_count:,} keys, including tombstones, each "
            "at its offset",
            holds=now == last_of_each_key(sunk) and _count(now) == facts.key_count,
        )

    def _judge_second(self, sunk: Logs, now: Logs) -> None:
        facts = self._plot.facts
        self.summary.check(
            f"pass 2 removed only the tombstones: {facts.latest_count:,} keys are left",
            holds=now == without_tombstones(last_of_each_key(sunk)) and _count(now) == facts.latest_count,
        )

    def _cat(self, sunk: Logs, now: Logs) -> None:
        """Read from a removed offset with the command line."""
        partition, offset, following = removed_offset(sunk, now)
        place = (self._environment.url, TOPIC, "-p", str(partition))
        arguments = ("log", "cat", *place, "--from-offset", str(offset), "--max-records", str(_SHOWN_RECORDS))
        with self._narrator.step(f"Read from offset {offset} of partition {partition}, which was removed") as step:
            lines = self._environment.commands.keyfold(*arguments).out.splitlines()
            found = self._environment.commands.keyfold(*arguments, "--json").out.splitlines()
        self._narrator.command(self._shown(arguments), lines)
        self.summary.seconds["cat"] = step.seconds
        self.summary.check(
            f"a read from the removed offset {offset} starts at {following}, the next existing offset",
            holds=bool(found) and json.loads(found[0])["offset"] == following,
        )

    def _verify(self) -> None:
        arguments = ("log", "verify", self._environment.url, TOPIC)
        with self._narrator.step("Verify: every object, checksum, record and index row") as step:
            finished = self._environment.commands.keyfold(*arguments, may_fail=True)
        self._narrator.command(self._shown(arguments), finished.out.splitlines())
        self.summary.seconds["verify"] = step.seconds
        self.summary.check("`keyfold log verify` finds no damage", holds=finished.exit_code == 0)

    def _start_spark(self) -> Running:
        """Start Spark in the background, while other steps run."""
        files = self._environment.commands.keyfold("log", "files", self._environment.url, TOPIC).out
        scratch = self._environment.folder / "scratch"
        command = [sys.executable, "-m", "keyfold_demo.stock_spark", str(self._s3a_libs), str(scratch)]
        return self._environment.commands.start(command, stdin=files)

    def _judge_spark(self, running: Running, now: Logs) -> None:
        with self._narrator.step("Read the same objects with stock Spark, without keyfold"):
            finished = running.wait()
            if finished.exit_code != 0:
                raise KeyfoldError(f"stock Spark failed:\n{finished.err[-3000:]}")
            rows = [json.loads(line) for line in finished.out.splitlines()]
        self._narrator.command(self._shown(("log", "files", self._environment.url, TOPIC)) + " | tee files.txt")
        self._narrator.say('    >>> spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(files)', "bold")
        for row in rows[:_SHOWN_RECORDS]:
            self._narrator.say(f"    Row(offset={row['offset']}, key={row['key']!r}, value={row['value']!r})", "dim")
        expected = sorted((r.offset, _text(r.key), _text(r.value)) for records in now.values() for r in records)
        self.summary.spark_records = len(rows)
        self.summary.spark_tree = _tree_of({r["key"].encode(): r["value"].encode() for r in rows if r["value"]})
        self.summary.seconds["spark"] = finished.seconds
        self.summary.check(
            f"stock Spark reads the same {len(expected):,} records",
            holds=sorted((r["offset"], r["key"], r["value"]) for r in rows) == expected,
        )

    def _conclude(self) -> None:
        """Compare the trees, and print all checks."""
        summary = self.summary
        trees = {*(snapshot.tree for snapshot in summary.snapshots), summary.spark_tree}
        summary.check(
            f"git's tree, built from the latest state after every act, is {self._plot.repository}'s: "
            f"{summary.facts.root_tree}",
            holds=trees == {summary.facts.root_tree},
        )
        self._narrator.say()
        for sentence, holds in summary.checks.items():
            self._narrator.conclusion(sentence, holds=holds)


def removed_offset(before: Logs, after: Logs) -> tuple[int, int, int]:
    """Return a partition, a removed offset (offset 36 if possible), and the next existing offset."""
    for partition, records in before.items():
        left = {record.offset for record in after[partition]}
        gone = [r.offset for r in records if r.offset not in left and left and r.offset < max(left)]
        if gone:
            offset = min(gone, key=lambda o: abs(o - 36))
            return partition, offset, min(o for o in left if o > offset)
    raise KeyfoldError("compaction removed nothing")


def _by_key(rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> dict[bytes | None, list[object]]:
    """Return the history of each key, in order: values and timestamps."""
    found: dict[bytes | None, list[object]] = defaultdict(list)
    for key, value, timestamp_ms in rows:
        found[key].append((value, timestamp_ms))
    return found


def _tree_of(latest: dict[bytes, bytes]) -> str:
    """Return the tree's name, or the reason if there is none: a wrong state must not crash the demo."""
    try:
        return root_tree(latest)
    except ValueError as error:
        return f"none: {error}"


def _count(logs: Logs) -> int:
    return sum(len(records) for records in logs.values())


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
