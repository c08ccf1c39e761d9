"""Logs of unusual shapes against a dict, in this process; `integration/test_compactor_shapes.py` does it on Spark."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from keyfold.log.manifest import Manifest
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import Encoding, TopicSettings
from tests.support.cleaning import EAGER, Sink, clean, load, object_names, read_all
from tests.support.shapes import Batches, Expected, again, one_after_another, shapes

SHAPES = shapes()
EVERYTHING = one_after_another(batches for name, batches in SHAPES.items() if name != "values of 20 MB")
LOGS = [pytest.param(batches, id=name) for name, batches in {**SHAPES, "all of them in one log": EVERYTHING}.items()]
ENCODINGS = {
    "tiny blocks": Encoding("null", 1, 256),
    "packed again": Encoding("deflate", 1, 4096),
    "in parts": Encoding("zstandard", 1, 65_536, part_bytes=5_000),
}


def topic(settings: TopicSettings, _topic: str, _manifest: Manifest) -> TopicSettings:
    return settings


@pytest.mark.sharded
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS.keys())
@pytest.mark.parametrize("batches", LOGS)
def test_three_passes_leave_the_dicts_records(batches: Batches, encoding: Encoding) -> None:
    check(batches, replace(EAGER, encoding=encoding))


@pytest.mark.sharded
@pytest.mark.parametrize("batches", LOGS)
def test_keyless_records_are_removed_if_the_topic_is_configured_so(batches: Batches) -> None:
    check(batches, replace(EAGER, encoding=Encoding("zstandard", 1, 4096), remove_keyless=True))


def check(batches: Batches, settings: TopicSettings) -> None:
    clock = ManualClock()
    store = MemoryStore("shapes", clock, min_part_bytes=1)
    sink = Sink.open(store, clock=clock)
    expected = Expected(settings.remove_keyless)
    for batch in batches:
        sink.append(batch, codec="zstandard", block_bytes=65_536)
        expected.append(batch)
    for seed, more in enumerate([[], again(batches), []]):
        if more:
            sink.append(more)
            expected.append(more)
        report = clean(store, clock=clock, seed=seed, settings_of=partial(topic, settings))
        assert report.exit_code == 0, report.document()
        assert read_all(store) == expected.clean()
    assert object_names(store) == load(store).object_names()
