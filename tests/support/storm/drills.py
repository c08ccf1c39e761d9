"""What an operator does in a storm: switch-over, fail-over and fail-back, and a resync. One drill at a time.

Each command is repeated until it succeeds, because the store fails now and then; some promotions are killed on their
way, and the same command goes on with them.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from keyfold_demo.s3_endpoint import REGION
from tests.support.storm.schedule import COMPACTOR, REPLICATORS, SINKS
from tests.support.storm.traffic import TOPICS
from tests.support.storm.world import FILE_DELETE_DELAY_MS, KEYFOLD, WAIT_S, World, wait_until

EVERYBODY: Final = (*SINKS, COMPACTOR, *REPLICATORS)
PARTITIONS: Final = sum(topic.kind.partitions for topic in TOPICS)
_RESYNC_STATE: Final = "resync-required"
_MAY_BE_RESYNCED: Final = {_RESYNC_STATE, "broken"}
_UNLINKED: Final = "which this log has replaced"


class Drills(threading.Thread):
    """Carries out drills, in the order in which they were asked for."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(daemon=True, name="drills")
        self._world = world
        self._random = Random(f"{seed} operator")
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log = world.folder / "drills.log"
        self._begun_s = time.monotonic()
        self._is_over = threading.Event()
        self.error = ""
        self.done: Counter[str] = Counter()

    def ask(self, what: str) -> None:
        """Begin a drill when the ones before it are over."""
        self._asked.put(what)

    def finish(self) -> None:
        """End the drill that is under way, begin no other, and wait."""
        self._is_over.set()
        self._asked.put(None)
        self.join()
        self.check()

    def check(self) -> None:
        """Raise what a drill has failed with."""
        assert not self.error, self.error

    def run(self) -> None:
        """Carry out what is asked for."""
        try:
            while (what := self._asked.get()) is not None:
                if self._is_over.is_set():
                    self.done["drills left out at the end"] += 1
                    continue
                self._say(f"begins: {what}")
                {"resync": self.resync, "switch over": self.switch_over, "fail over": self.fail_over}[what]()
                self._say(f"is over: {what}")
        except BaseException:  # noqa: BLE001 - `check` raises it
            self.error = traceback.format_exc()

    # Drills

    def register(self) -> None:
        """Register both targets at the source, and enable compaction in all three buckets."""
        world = self._world
        for name in world.buckets:
            self._repeat("replica", "enable-compaction", world.config(name))
        for target in world.targets:
            self._register(world.source, target)

    def resync(self) -> None:
        """A replicator is stopped until the source has purged a tombstone that the replica had not received."""
        world = self._world
        at = self._random.randrange(len(REPLICATORS))
        target = world.targets[at]
        world.close([REPLICATORS[at]], gracefully=False)
        wait_until(
            lambda: self._is_over.is_set() or _RESYNC_STATE in self._states(world.source, target),
            f"the source purges a tombstone that {target} has not received",
            world.check,
        )
        self.mend()
        world.open([REPLICATORS[at]])

    def switch_over(self) -> None:
        """Promote a replica while the source answers. The compactor is a forgotten one that must be shut out."""
        world = self._world
        old, new = world.source, self._random.choice(world.targets)
        self._await_all_there(old, new)
        world.close([*SINKS, *REPLICATORS], gracefully=self._random.random() < 0.5)
        args = (
            "replica",
            "promote",
            world.config(new),
            "--source",
            world.config(old),
            "--old-name",
            world.buckets[old],
        )
        if self._random.random() < 0.5:
            self._kill_midway(*args)
        self._repeat(*args)
        world.close([COMPACTOR], gracefully=self._random.random() < 0.5)
        world.become(new)
        third = next(name for name in world.targets if name != old)
        for name in (new, third):
            self._unregister(old, name)
        for name in world.targets:
            self._register(new, name)
        world.open(EVERYBODY)
        self.done["promotions with the source (switch-over)"] += 1

    def fail_over(self) -> None:
        """Promote a replica while the source's store is unavailable; make the old source its replica later."""
        world = self._world
        old, new = world.source, self._random.choice(world.targets)
        self._await_all_there(old, new)
        third = next(name for name in world.targets if name != new)
        world.gates[old].is_away = True
        world.close(EVERYBODY, gracefully=False)
        how = ("--without-source",) if self._random.random() < 0.7 else ("--source", world.config(old), "--force")
        self._repeat("replica", "promote", world.config(new), *how)
        self.done["promotions without the source (fail-over)"] += 1
        world.become(new)
        self._register(new, third)
        at = REPLICATORS[world.targets.index(third)]
        world.open([*SINKS, COMPACTOR, at])
        self._is_over.wait(self._random.uniform(3, 12))
        world.gates[old].is_away = False
        self._demote(old, new)
        for name in (new, third):
            self._unregister(old, name)
        self._register(new, old)
        world.open(EVERYBODY)
        self.mend()

    def mend(self) -> None:
        """Resync each replica that says that it needs one, or that had records which its new source gave up."""
        world = self._world
        for target in world.targets:
            states = self._states(world.source, target)
            if _MAY_BE_RESYNCED & set(states):
                self._say(f"{target} is {dict(Counter(states))}")
                self._repeat("replica", "resync", world.config(world.source), world.buckets[target])
                self.done["partitions resynced"] += sum(state in _MAY_BE_RESYNCED for state in states)
                self.done["resyncs"] += 1

    def in_sync(self) -> bool:
        """Return whether all replicas have what the source has; resync those that need it."""
        world = self._world
        states = [state for target in world.targets for state in self._states(world.source, target)]
        if _MAY_BE_RESYNCED & set(states):
            self.mend()
        return len(states) == 2 * PARTITIONS and set(states) == {"in-sync"}

    def is_begun(self) -> bool:
        """Return whether all replicas have some version of each partition."""
        world = self._world
        states = [state for target in world.targets for state in self._states(world.source, target)]
        return len(states) == 2 * PARTITIONS and not {"waiting", *_MAY_BE_RESYNCED} & set(states)

    # Commands

    def _demote(self, old: str, new: str) -> None:
        """Make the old source a replica. Where it says so, the log is cleaned at the new source first."""
        world = self._world
        args = ("replica", "demote", world.config(old), "--to-replica-of", world.config(new), "--discard")
        for _ in self._tries("demote"):
            done = self._keyfold(*args, "--name", world.buckets[old])
            if done.returncode == 0:
                break
            if _UNLINKED in done.stdout + done.stderr:
                self.done["demotions that asked for a cleaning first"] += 1
                self._clean()
        self.done["demotions"] += 1

    def _clean(self) -> None:
        """Clean everything at the source, with the compactor that runs out of the way."""
        world = self._world
        world.close([COMPACTOR], gracefully=False)
        command = world.command_of(COMPACTOR)
        done = world.command([*command, "--force"], timeout_s=WAIT_S)
        self._say(f"forced clean: {done.returncode} {done.stdout[-600:]}")
        world.open([COMPACTOR])

    def _register(self, source: str, target: str) -> None:
        world = self._world
        name = world.buckets[target]
        values = {
            "store.url": world.gates[target].url,
            "s3.region": REGION,
            "file.delete.delay.ms": str(FILE_DELETE_DELAY_MS),
            "replica.retry.backoff.max.ms": "3000",
        }
        sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        for _ in self._tries(f"register {target}"):
            if name in self._registered(source):
                return
            self._keyfold("replica", "add", world.config(source), name, "--to", world.url(target), *sets)

    def _unregister(self, source: str, target: str) -> None:
        name = self._world.buckets[target]
        for _ in self._tries(f"unregister {target}"):
            if name not in self._registered(source):
                return
            self._keyfold("replica", "remove", self._world.config(source), name)

    def _registered(self, source: str) -> list[str]:
        done = self._repeat("replica", "list", self._world.config(source), "--json")
        return [replica["name"] for replica in json.loads(done.stdout)]

    def _states(self, source: str, target: str) -> list[str]:
        """Return the states of a replica's partitions; empty without an answer."""
        done = self._keyfold(
            "replica", "status", self._world.config(source), self._world.buckets[target], "--json", is_quiet=True
        )
        if done.returncode != 0 or not done.stdout:
            return []
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[0])["partitions"]
        return [str(partition["state"]) for partition in found]

    def _await_all_there(self, old: str, new: str) -> None:
        """Wait until a replica has each partition, and none of them waits for a resync."""

        def is_ready() -> bool:
            states = self._states(old, new)
            if _MAY_BE_RESYNCED & set(states):
                self.mend()
            return len(states) == PARTITIONS and not _MAY_BE_RESYNCED & set(states)

        wait_until(is_ready, f"{new} follows {old} in all partitions", self._world.check)

    def _kill_midway(self, *args: str) -> None:
        try:
            self._world.command([*KEYFOLD, *args], timeout_s=self._random.uniform(1.0, 4.0))
        except subprocess.TimeoutExpired:
            self.done["promotions killed midway"] += 1

    def _repeat(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it succeeds."""
        for _ in self._tries(" ".join(args)):
            done = self._keyfold(*args)
            if done.returncode == 0:
                break
        return done

    def _tries(self, what: str) -> Iterator[int]:
        deadline_s = time.monotonic() + WAIT_S
        number = 0
        while True:
            yield number
            number += 1
            assert time.monotonic() < deadline_s, f"tried {number} times in {WAIT_S:.0f} s, see drills.log: {what}"
            self.done["commands repeated"] += 1
            time.sleep(0.5)

    def _keyfold(self, *args: str, is_quiet: bool = False) -> subprocess.CompletedProcess[str]:
        done = self._world.keyfold(*args)
        if not is_quiet:
            self._say(f"{done.returncode} {' '.join(args)}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        return done

    def _say(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{time.monotonic() - self._begun_s:8.2f} s  {text}\n")
