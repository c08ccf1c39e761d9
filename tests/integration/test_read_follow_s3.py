"""Batches and followers against an S3 server: real ranges, real ETags, real time."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Timer

import pytest

import keyfold
from keyfold import Selection
from keyfold.errors import Corrupt
from keyfold.read.records import records_of
from keyfold.store.api import Update
from keyfold.store.s3 import S3Store
from tests.support.logs import MadeLog, latest_of, record
from tests.support.moto import LocalS3Process


@pytest.fixture
def store(local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    opened = S3Store(bucket)
    yield opened
    opened.close()


def test_a_follower_sees_what_is_committed_while_it_waits(store: S3Store, bucket: str) -> None:
    made = MadeLog(store=store)
    everything = [record(o, f"k{o % 5}", None if o % 7 == 0 else f"v{o}") for o in range(30)]
    made.append(everything[:10])
    stop = Event()
    later = Timer(1.0, lambda: made.append(everything[10:]))
    later.start()
    found = []
    with keyfold.open_log(f"s3://{bucket}/topics", "users") as log:
        for partition, r in log.follow(stop=stop):
            assert partition == 0
            found.append(r)
            if len(found) == len(everything):
                stop.set()
        assert found == everything
        batches = list(log.batches(where=Selection(keys=frozenset({b"k3"}))))
        assert [r for b in batches for r in records_of(b)] == [r for r in everything if r.key == b"k3"]
        state = [r for b in log.latest_batches() for r in records_of(b)]
        assert {r.key: r for r in state} == latest_of(everything)
    later.join()


def test_a_truncated_segment_is_damage_and_not_a_store_error(store: S3Store, bucket: str) -> None:
    made = MadeLog(store=store)
    entry = made.append([record(o, f"k{o}", f"value {o}" * 9) for o in range(50)])
    key = made.place.key(entry.name)
    blob = store.get(key)
    for left in (blob.data[:-40], blob.data[:10]):
        store.put(key, left, Update(store.head(key).etag))
        with (
            keyfold.open_log(f"s3://{bucket}/topics", "users") as log,
            pytest.raises(Corrupt, match=rf"cut off: it has {len(left)} bytes"),
        ):
            list(log.batches())
