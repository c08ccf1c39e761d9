"""The journal of a restore in the bucket: its plan, and windows that are announced before they are produced.

    <topics.dir>/_restores/<topic>/<target topic>@<target topic id>/
        plan.json                          the log and the records to restore; created once
        lease.json                         the active run; changed by compare-and-set
        partition=<p>/plan.json            the same for a partition that was added later; created once
        partition=<p>/<number>.window      numbered windows; created once each

A window's name is its number, and it is created, never replaced. So if two runs continue from the same point, only one
gets the number, and the other stops. A topic that was deleted and created again has another id and another journal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from keyfold.errors import AlreadyExists, ObjectNotFound
from keyfold.read.position import Anchor
from keyfold.restore.errors import RestoreFenced, RestoreRefused
from keyfold.restore.window import Window, WindowDamaged, in_force
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create, ObjectStore
from keyfold.store.documents import DOCUMENT_BYTES_MAX, decode_document

FOLDER: Final = "_restores/"
FORMAT: Final = 1
_WINDOW: Final = re.compile(r"(\d{10})\.window")


def journal_folder(topics_dir: str, topic: str, target: str, target_id: str) -> str:
    """Key prefix of a restore's journal. Topic names and ids are safe in keys; no topic's folder begins with `_`."""
    head = f"{topics_dir}/" if topics_dir else ""
    return f"{head}{FOLDER}{topic}/{target}@{target_id}/"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What was decided of one partition: where reading begins, the version it began with, the ends.

    `to_offset` is the end that was asked for, None where it is the log's. `planned_end` is the log's end in the first
    version.
    """

    anchor: Anchor
    start: int
    planned_end: int
    to_offset: int | None = None

    def to_json(self) -> JsonObject:
        """As it stands in `plan.json`."""
        return {
            "log_id": self.anchor.log_id,
            "version": self.anchor.version,
            "last_pass_epoch": self.anchor.last_pass_epoch,
            "start": self.start,
            "planned_end": self.planned_end,
            "to_offset": self.to_offset,
        }


@dataclass(frozen=True, slots=True)
class _StoredPartition:
    """A `PartitionPlan` as it stands in `plan.json`."""

    log_id: str
    version: int
    last_pass_epoch: int
    start: int
    planned_end: int
    to_offset: int | None

    def opened(self) -> PartitionPlan:
        anchor = Anchor(self.log_id, self.version, self.last_pass_epoch, self.planned_end)
        return PartitionPlan(anchor, self.start, self.planned_end, self.to_offset)


@dataclass(frozen=True, slots=True)
class _Format:
    """The version of a plan's format: another one may have other fields."""

    format: int


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """A `RestorePlan` as it stands in `plan.json`."""

    format: int
    source: str
    target: str
    asked: Mapping[str, object]
    partitions: Mapping[int, _StoredPartition]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore does. `asked` is everything that must be the same in every run of it, by the options' names."""

    source: str
    target: str
    asked: Mapping[str, object]
    partitions: Mapping[int, PartitionPlan] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The stored object."""
        data = {
            "format": FORMAT,
            "source": self.source,
            "target": self.target,
            "asked": dict(self.asked),
            "partitions": {str(number): plan.to_json() for number, plan in sorted(self.partitions.items())},
        }
        return json.dumps(data, indent=1).encode()

    @staticmethod
    def decode(data: bytes) -> RestorePlan:
        """Read `encode`'s bytes. Raises `ValueError`."""
        version = decode_document(_Format, data).format
        if version != FORMAT:
            raise ValueError(f"it has format {version}, and this version of keyfold reads format {FORMAT}")
        found = decode_document(_StoredPlan, data)
        partitions = {number: plan.opened() for number, plan in found.partitions.items()}
        return RestorePlan(found.source, found.target, found.asked, partitions)


class Journal:
    """The objects of one restore, but for its lease. May be used by several threads."""

    def __init__(self, store: ObjectStore, folder: str, retry: RetryPolicy) -> None:
        self.store = store
        self.folder = folder
        self._retry = retry

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return f"{self.store.url}/{self.folder}"

    def load_plan(self, partitions: Iterable[int] = ()) -> RestorePlan | None:
        """The plan, or None if this restore never started. Raises `RestoreRefused` if it is unreadable.

        Of `partitions` that the log did not have when it was begun those are in it that a later run took in.
        """
        plan = self._load_plan("plan.json")
        if plan is None:
            return None
        found = dict(plan.partitions)
        for number in sorted(set(partitions) - set(found)):
            later = self._load_plan(_plan_name(number))
            if later is not None:
                found |= later.partitions
        return replace(plan, partitions=found)

    def _load_plan(self, name: str) -> RestorePlan | None:
        try:
            data = self.store.get(self.folder + name, DOCUMENT_BYTES_MAX).data
        except ObjectNotFound:
            return None
        try:
            return RestorePlan.decode(data)
        except ValueError as error:
            raise RestoreRefused(
                f"the journal's plan cannot be read (`{self.url}{name}`): {error}",
                hint="continue with the version of keyfold that wrote it; or restore into another topic from scratch",
            ) from error

    def create_plan(self, plan: RestorePlan) -> RestorePlan:
        """Write the plan, or load the one that another run has written, and take in the partitions that it lacks."""
        found = self._create_plan("plan.json", plan)
        for number in sorted(set(plan.partitions) - set(found.partitions)):
            later = self._create_plan(_plan_name(number), replace(plan, partitions={number: plan.partitions[number]}))
            found = replace(found, partitions={**found.partitions, **later.partitions})
        return found

    def _create_plan(self, name: str, plan: RestorePlan) -> RestorePlan:
        try:
            self._retry.repeat(lambda: self.store.put(self.folder + name, plan.encode(), Create()))
        except AlreadyExists:
            found = self._load_plan(name)
            assert found is not None
            return found
        return plan

    def numbers(self, partition: int) -> list[int]:
        """Numbers of a partition's windows, ascending. Raises `RestoreRefused` where one is missing."""
        folder = self._folder(partition)
        found: list[int] = []
        for info in self.store.list(folder):
            match = _WINDOW.fullmatch(info.key.removeprefix(folder))
            if match is not None:
                found.append(int(match[1]))
        if found != list(range(len(found))):
            raise RestoreRefused(
                f"the journal of partition {partition} lacks windows (`{self.store.url}/{folder}`)",
                hint="the restored records can no longer be identified: restore into another topic",
            )
        return found

    def read(self, partition: int, number: int) -> Window:
        """One window. Raises `RestoreRefused` where its bytes are damaged."""
        key = self._key(partition, number)
        try:
            return Window.decode(self.store.get(key).data)
        except WindowDamaged as error:
            raise RestoreRefused(
                f"`{key}` is damaged: {error}",
                hint="the restored records can no longer be identified: restore into another topic",
            ) from error

    def in_force(self, partition: int, numbers: Sequence[int]) -> Iterator[Window]:
        """What is left of the windows `numbers` where later ones go before earlier ones, the last one first.

        One window is held at a time.
        """
        return in_force(self.read(partition, number) for number in reversed(numbers))

    def last_anchor(self, partition: int, numbers: Sequence[int]) -> Anchor | None:
        """What the newest run knew of the log when it announced its last window; None where windows do not say it.

        A run that is over can have left one window behind those of newer runs, and not two: from two of one run on,
        all before are of that run or of older ones.
        """
        newest: Window | None = None
        later: Window | None = None
        for number in reversed(numbers):
            window = self.read(partition, number)
            if newest is None or window.run > newest.run:
                newest = window
            if later is not None and later.run == window.run:
                break
            later = window
        return None if newest is None else newest.anchor

    def add(self, partition: int, window: Window) -> int:
        """Announce a window; the number that it got. Raises `RestoreFenced` where a newer run has announced one.

        A number that an older run took is left to it: that run is over, its request was still under way, and a later
        window goes before it.
        """
        while True:
            key, data = self._key(partition, window.number), window.encode()
            try:
                self._retry.repeat(partial(self.store.put, key, data, Create()))
            except AlreadyExists:
                if self.store.get(key).data != data:  # mine, if only the answer was lost
                    if self.read(partition, window.number).run >= window.run:
                        raise RestoreFenced(
                            f"another run has announced window {window.number} of partition {partition} (`{key}`)",
                            hint="let one run finish; this run produced no record of the window",
                        ) from None
                    window = replace(window, number=window.number + 1)
                    continue
            return window.number

    def _folder(self, partition: int) -> str:
        return f"{self.folder}partition={partition}/"

    def _key(self, partition: int, number: int) -> str:
        return f"{self._folder(partition)}{number:010d}.window"


def _plan_name(partition: int) -> str:
    return f"partition={partition}/plan.json"
