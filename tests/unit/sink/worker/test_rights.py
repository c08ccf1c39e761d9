"""The rights to the bucket listed in docs/migrating-from-connect.md suffice, and each is used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from random import Random

import pytest

from keyfold.errors import AccessDenied
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Blob, ObjectInfo, PutMode, PutResult
from keyfold.store.memory import MemoryStore, MemoryUpload
from keyfold.store.probe import probe
from keyfold_sink.status import UNKNOWN, WorkerStatus
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.worker_registry import GONE_AFTER_MS, WorkerRegistry
from tests.support.root import ROOT
from tests.support.sink_rig import T0, MakeRig, rigs

DOCS = ROOT / "docs" / "migrating-from-connect.md"
BUCKET = "arn:aws:s3:::my-bucket"
FOLDER = sink_folder("topics", "users")


def policy() -> list[tuple[frozenset[str], list[str]]]:
    """Return the actions and resources of each statement."""
    text = DOCS.read_text().partition("## Rights to the bucket")[2]
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    statements = json.loads(found[1])["Statement"]
    assert all(statement["Effect"] == "Allow" for statement in statements)
    return [(frozenset(_many(one["Action"])), _many(one["Resource"])) for one in statements]


def _many(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


class Guarded(MemoryStore):
    """A store that allows what the documented policy allows."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock)
        self.policy = policy()
        self.used: set[tuple[str, str]] = set()

    def allow(self, action: str, key: str | None) -> None:
        resource = BUCKET if key is None else f"{BUCKET}/{key}"
        for actions, resources in self.policy:
            for pattern in resources:
                if action in actions and fnmatchcase(resource, pattern):
                    self.used.add((action, pattern))
                    return
        raise AccessDenied(key or "", f"{action} on {resource} is not in the documented policy")

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self.allow("s3:GetObject", key)
        return super().get(key, max_bytes)

    def head(self, key: str) -> ObjectInfo:
        self.allow("s3:GetObject", key)
        return super().head(key)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        self.allow("s3:PutObject", key)
        return super().put(key, data, mode)

    def start_upload(self, key: str) -> MemoryUpload:
        self.allow("s3:PutObject", key)
        return super().start_upload(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.allow("s3:ListBucket", None)
        return super().list(prefix, start_after=start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        self.allow("s3:ListBucket", None)
        return super().list_folders(prefix)

    def delete(self, key: str) -> None:
        self.allow("s3:DeleteObject", key)
        super().delete(key)


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


def test_the_documented_rights_suffice_and_each_is_used(make: MakeRig) -> None:
    store = Guarded()
    probe(store, "topics", ManualClock(), Random(1))
    rig = make(store, segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.next_offset(T0) == 5)
    clock = ManualClock()
    shared = Guarded(clock)
    one, other = worker(shared, clock, "a"), worker(shared, clock, "b")
    for each in (one, other):
        turn(each)
    clock.advance(GONE_AFTER_MS + 10_000)
    turn(one)  # the other one is gone, and is cleared away
    assert one.others(fresh=True) == []
    one.leave()
    granted = {(action, pattern) for actions, patterns in store.policy for action in actions for pattern in patterns}
    assert store.used | shared.used == granted


def worker(store: Guarded, clock: ManualClock, name: str) -> WorkerRegistry:
    document = DesiredStateDocument(store, FOLDER, clock, Random(name))
    document.refresh()
    return WorkerRegistry(store, FOLDER, document, name, clock=clock, random=Random(name))


def turn(registry: WorkerRegistry) -> None:
    name, slot = registry.worker_id, registry.slot
    registry.update(lambda: WorkerStatus(name, slot if slot != UNKNOWN else 0, 0, "1", 0))
