"""Whatever becomes of the bytes of one object: verification ends, finds it, and blames that object alone."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.verify.findings import VerifyReport
from keyfold.verify.partition import verify_partition
from tests.support.logs import PLACE
from tests.unit.verify.test_planted_damage import made_log


@cache
def objects(seed: int) -> tuple[dict[str, bytes], frozenset[str]]:
    """All objects of a log in four codecs whose last pass is not collected yet, and those that are its log."""
    made = made_log(seed=seed)
    names = {made.place.key(name) for name in made.manifest.object_names()} | {made.place.manifest_key}
    return {key: made.store.get(key).data for key in made.object_keys()}, frozenset(names)


def bent(data: bytes, others: list[bytes], random: Random) -> bytes:
    """Bytes flipped, replaced, cut off, put in or taken out; or another object's."""
    mutable = bytearray(data)
    at = random.randrange(len(data))
    choice = random.randrange(6)
    if choice == 0:
        mutable[at] ^= random.randrange(1, 256)
    elif choice == 1:
        for _ in range(random.randrange(2, 8)):
            mutable[random.randrange(len(data))] = random.randrange(256)
    elif choice == 2:
        del mutable[at:]
    elif choice == 3:
        mutable[at : at + random.randrange(1, 40)] = random.randbytes(random.randrange(40))
    elif choice == 4:
        mutable += random.randbytes(random.randrange(1, 400))
    else:
        return random.choice(others)
    return bytes(mutable)


def verify(data: dict[str, bytes]) -> VerifyReport:
    store = MemoryStore()
    for key, value in data.items():
        store.put(key, value, Create())
    return verify_partition(store, PLACE, clock=ManualClock(), random=Random(0), rows_at_once=50)


@pytest.mark.sharded
@settings(max_examples=400)
@given(st.integers(0, 3), st.integers(0, 2**32))
def test_verify_finds_one_corrupted_object(seed: int, choices: int) -> None:
    sound, log = objects(seed)
    random = Random(choices)
    key = random.choice(sorted(sound))
    data = bent(sound[key], list(sound.values()), random)
    report = verify({**sound, key: data})
    is_hurt = data != sound[key] and key in log
    assert report.is_sound != is_hurt
    assert {f.object for f in report.damage} == ({key} if is_hurt else set())


@pytest.mark.sharded
@settings(max_examples=100)
@given(st.integers(0, 3), st.integers(0, 2**32))
def test_verify_finds_several_corrupted_objects(seed: int, choices: int) -> None:
    sound, log = objects(seed)
    random = Random(choices)
    keys = random.sample(sorted(sound), 4)
    data = {key: bent(sound[key], list(sound.values()), random) for key in keys}
    report = verify({**sound, **data})
    hurt = {key for key in keys if data[key] != sound[key] and key in log}
    assert report.is_sound == (not hurt)
    assert {f.object for f in report.damage} <= hurt
    assert PLACE.manifest_key in hurt or {f.object for f in report.damage} == hurt
