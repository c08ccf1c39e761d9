"""Documents of the bucket: registrations, desired states, statuses, journals, leases, and what a checkpoint holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

import numpy as np
from isal.isal_zlib import crc32

from keyfold.config.config_file import parse_json
from keyfold.errors import KeyfoldError
from keyfold.log.codec import open_codec
from keyfold.log.names import Place
from keyfold.log.replica_first_copy import FirstCopy, unfinished
from keyfold.read.follow import Position
from keyfold.read.position import Anchor
from keyfold.replicas.documents import (
    CompactionEntry,
    Enablement,
    Registration,
    enablement_document,
    enablement_of,
    registration_document,
    registration_of,
)
from keyfold.restore.group_offsets import parse_offsets
from keyfold.restore.journal import Journal, PartitionPlan, RestorePlan
from keyfold.restore.lease import Lease
from keyfold.restore.window import Window, WindowDamaged
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.spark.source.offsets import StreamOffset
from keyfold.store.api import Create
from keyfold.store.cas_document import CasDocument
from keyfold.store.documents import DocumentUnreadable, load_json
from keyfold.store.memory import MemoryStore
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.status.status_report import StatusReport, report_document, report_of
from keyfold_sink.status import WorkerStatus, dump, load_task, load_worker, standstill
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker.desired_state import (
    DesiredState,
    DesiredStateUnreadable,
    Restart,
    RestartScope,
    decode,
    encode,
)
from keyfold_sink.worker.wire import decode_command, encode_command
from tests.support.fake_service import task, worker
from tests.support.fuzz.mutate import any_bytes, json_document, pack, parts_by, text_line, unpack
from tests.support.fuzz.target import Target

_PLACE: Final = Place("topics", "users", 0)
_ANCHOR: Final = Anchor("0" * 32, 3, 2, 9)


def _store(key: str, data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put(key, data, Create())
    return store


# Replication


def _swapped(data: bytes) -> tuple[Any, int]:
    found = CasDocument(_store("r.json", data), "r.json", ManualClock(), Random(1)).read()
    return found.body, found.version


def decode_registration(data: bytes) -> None:
    """A registration, and all that is asked of one that can be read."""
    body, version = _swapped(data)
    registration = registration_of(body, "topics/_replicas/far.json", version)
    registration.covers("users")
    _ = registration.url, registration.topics_dir, registration.host, registration.hold_name
    try:
        _ = registration.options
    except KeyfoldError:
        return
    again = registration_of(registration_document(registration), "topics/_replicas/far.json", version)
    assert again == registration


def registration_seeds() -> list[bytes]:
    """Of all topics, of some, and by a pattern."""
    config = {"s3.bucket.name": "far", "s3.region": "eu-central-1"}
    more: tuple[dict[str, str], ...] = (
        {},
        {"topics": "users,orders"},
        {"topics.regex": "us.*"},
        {"topics.dir": "far/logs"},
    )
    documents = [registration_document(Registration("far", {**config, **each}, cursor_id="1")) for each in more]
    return [json.dumps({"version": 2, "changes": ["a"], **document}).encode() for document in documents]


def decode_enablement(data: bytes) -> None:
    """What a replica's bucket says of compaction."""
    body, version = _swapped(data)
    found = enablement_of(body, "_replica.json", version)
    found.entry("users")
    found.exceptions()
    enablement_of(enablement_document(found), "_replica.json", version)


def enablement_seeds() -> list[bytes]:
    """For all topics, and for one."""
    entries = Enablement({"*": CompactionEntry(True, 1, 5), "users": CompactionEntry(False, 1)})
    return [json.dumps({"version": 1, "changes": [], **enablement_document(each)}).encode()
            for each in (entries, Enablement())]  # fmt: skip


def decode_reported(data: bytes) -> None:
    """A replica's status: None where it cannot be read."""
    found = report_of(data, "topics", 5)
    if found is not None:
        json.dumps(report_document(found))


def reported_seeds() -> list[bytes]:
    """One partition in sync, and one that waits."""
    states = (
        PartitionState(_PLACE),
        PartitionState(Place("topics", "users", 1), SyncState.WAITING, message="later"),
    )
    reported = StatusReport("host:1", 5, True, "", {"bytes": 7}, {state.place: state for state in states})
    return [json.dumps(report_document(reported)).encode()]


def decode_first_copy(data: bytes) -> None:
    """The marker of a first copy, and the error that is made of it."""
    str(unfinished(_PLACE, data, {"a": 1}))
    FirstCopy.of_bytes(data)


# The sink


def decode_desired_state(data: bytes) -> None:
    """A sink's desired state round-trips: what is read can be written, and is equal then."""
    desired = decode(data, "orders.json")
    _ = desired.restart_number
    assert decode(encode(desired), "orders.json") == desired, "they say something else when they are written again"


def desired_state_seeds() -> list[bytes]:
    """New ones, and some with restarts."""
    restarts = (Restart(1, RestartScope.ALL), Restart(2, RestartScope.ONE, "host:8083", 1))
    asked = DesiredState(version=3, restarts=restarts, slots={"host:8083": 0}, changes=("a", "b"),
                         unknown={"later": [1]})  # fmt: skip
    return [encode(DesiredState()), encode(asked)]


def decode_status(data: bytes) -> None:
    """A task's or worker's status, and what is calculated from it."""
    for read in (load_task, load_worker):
        with contextlib.suppress(ValueError):
            found = read(data)
            assert read(dump(found)) == found
            for one in found.tasks if isinstance(found, WorkerStatus) else (found,):
                standstill(one, 1_000)
                _ = [partition.lag_records for partition in one.partitions]
                sum(one.values.values())


def decode_position(data: bytes) -> None:
    """The position of a follower, as its user has stored it."""
    document = load_json(data)
    if isinstance(document, dict):
        position = Position.of(document)
        assert Position.of(position.document()) == position


def decode_line(data: bytes) -> None:
    """A line that the supervisor of a sink writes to a task."""
    decode_command(data)


# Restores


def decode_plan(data: bytes) -> None:
    """The plan of a restore."""
    Journal(_store("j/plan.json", data), "j/", RetryPolicy(ManualClock(), Random(1))).load_plan([0, 1])


def decode_window(data: bytes) -> None:
    """A window of a restore: its header, and the offsets behind it, with a checksum that is right again."""
    header, payload = unpack(data, 2)
    raw = open_codec("zstandard").compress(payload)
    try:
        document = load_json(header)
        if isinstance(document, dict) and document.get("crc32") == "right":
            header = json.dumps({**document, "crc32": crc32(raw)}).encode()
    except ValueError:
        pass
    window = Window.decode(header + b"\n" + raw)
    _ = window.end, window.position_after(0), window.position_after(len(window.offsets))


def window_seeds() -> list[bytes]:
    """With offsets, and the last one."""
    found = []
    for window in (
        Window(0, 5, 0, 9, np.array([1, 2, 8]), 1, False, _ANCHOR),
        Window(1, 8, 9, 9, np.empty(0, np.int64), 1, True),
    ):
        line, _, payload = window.encode().partition(b"\n")
        header = json.dumps({**json.loads(line), "crc32": "right"}).encode()
        found.append(pack(header, bytes(open_codec("zstandard").decompress(payload, 1 << 20))))
    return found


def decode_stored_window(data: bytes) -> None:
    """A window as its object is."""
    Window.decode(data)


def decode_lease(data: bytes) -> None:
    """The lease of a restore, by a run that finds it."""
    Lease(_store("lease.json", data), "lease.json", holder="h", clock=ManualClock(), random=Random(1)).acquire()


def lease_seeds() -> list[bytes]:
    """One that was let go of, as the product writes it."""
    store = MemoryStore()
    lease = Lease(store, "lease.json", holder="h", clock=ManualClock(), random=Random(1))
    lease.acquire()
    held = json.loads(store.get("lease.json").data)
    return [json.dumps({**held, "free": True}).encode()]


# Files and options that people and Spark give back


def decode_stream_offset(data: bytes) -> None:
    """Offsets of a checkpoint."""
    document = load_json(data)  # Spark reads the text, and refuses what is no JSON
    if isinstance(document, dict):
        StreamOffset.read(document, "users")


def decode_offsets_file(data: bytes) -> None:
    """Offsets of consumer groups, as Kafka exports them."""
    parse_offsets(data.decode("utf-8", "replace"), "offsets.csv")


def decode_config(data: bytes) -> None:
    """A connector's configuration as a file."""
    parse_json(data.decode("utf-8", "replace"), "sink.json")


def _one(text: str | bytes) -> Callable[[], list[bytes]]:
    return lambda: [text if isinstance(text, bytes) else text.encode()]


def _plan() -> list[bytes]:
    return [
        RestorePlan(
            "topics/users",
            "users@x",
            {"latest": False},
            {0: PartitionPlan(_ANCHOR, 0, 9), 1: PartitionPlan(_ANCHOR, 0, 9, 5)},
        ).encode()
    ]


def _first_copy() -> list[bytes]:
    return [FirstCopy("far", "s3://near/topics", "0" * 32, 3, 5, 100, 1, 10).as_bytes()]


def _stream() -> list[bytes]:
    partition = {"offset": 5, "begun": 0, "log_id": "0" * 32, "version": 3, "last_pass_epoch": 2, "seen_to": 9}
    return [json.dumps({"format": 1, "topic": "users", "partitions": {"0": partition}}).encode()]


_JSON: Final = (json_document, json_document, json_document, any_bytes)

DOCUMENT_TARGETS: Final = (
    Target("registration", registration_seeds, decode_registration,
           ("keyfold.replicas.documents", "keyfold.store.cas_document"), _JSON),
    Target("enablement", enablement_seeds, decode_enablement, ("keyfold.replicas.documents",), _JSON,
           (DocumentUnreadable,)),
    Target("replica-status", reported_seeds, decode_reported, ("keyfold_replicator.status.status_report",), _JSON, ()),
    Target("first-copy", _first_copy, decode_first_copy, ("keyfold.log.replica_first_copy",), _JSON, (ValueError,)),
    Target("orders", desired_state_seeds, decode_desired_state, ("keyfold_sink.worker.desired_state",), _JSON,
           (DesiredStateUnreadable,)),
    Target("worker-status", lambda: [dump(worker()), dump(task(0))], decode_status, ("keyfold_sink.status",),
           _JSON, ()),
    Target("task-line", lambda: [encode_command(order) for order in TaskCommand], decode_line,
           ("keyfold_sink.worker.wire",), _JSON, (ValueError,)),
    Target("restore-plan", _plan, decode_plan, ("keyfold.restore.journal",), _JSON),
    Target("restore-window", window_seeds, decode_window, ("keyfold.restore.window",),
           (parts_by(json_document, any_bytes),), (WindowDamaged,)),
    Target("stored-window", lambda: [Window(0, 5, 0, 9, np.array([1, 2, 8])).encode()], decode_stored_window,
           ("keyfold.restore.window",), allowed=(WindowDamaged,)),
    Target("restore-lease", lease_seeds, decode_lease, ("keyfold.restore.lease",), _JSON),
    Target("stream-offset", _stream, decode_stream_offset, ("keyfold.spark.source.offsets",), _JSON,
           (KeyfoldError, ValueError)),
    Target("log-position", _one(json.dumps(Position(5, _ANCHOR).document())), decode_position, ("keyfold.read.follow",),
           _JSON, (ValueError,)),
    Target("offsets-file", _one("users,0,12\nusers,1,7\n"), decode_offsets_file, ("keyfold.restore.group_offsets",),
           (text_line, any_bytes)),
    Target("config-file", _one('{"name": "users", "config": {"topics": "users", "tasks.max": 2}}'), decode_config,
           ("keyfold.config.config_file",), _JSON),
)  # fmt: skip
