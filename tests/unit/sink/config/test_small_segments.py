"""Warnings about settings that make tiny segments: which values draw one, and where they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfold_sink.config.options import SinkOptions
from keyfold_sink.config.small_segments import small_segment_warnings
from tests.support.command_here import run_here

CONFIG = {"name": "users", "topics": "users,orders", "bootstrap.servers": "b:1", "s3.bucket.name": "log"}


def warned(**more: str) -> list[str]:
    values = {key.replace("__", "."): value for key, value in more.items()}
    return [note.key for note in small_segment_warnings(SinkOptions.parse({**CONFIG, **values}))]


@pytest.mark.parametrize(
    ("key", "lowest"), [("flush__size", 1000), ("segment__ms", 10_000), ("segment__bytes", 1024 * 1024)]
)
def test_a_warning_begins_below_a_limit(key: str, lowest: int) -> None:
    assert warned(**{key: str(lowest)}) == []
    assert warned(**{key: str(lowest - 1 if lowest != 1024 * 1024 else lowest - 1024)}) == [key.replace("__", ".")]


def test_the_defaults_and_no_flush_size_draw_none() -> None:
    assert warned() == []
    assert warned(flush__size="0") == []


def test_a_topics_own_value_has_its_own_warning() -> None:
    assert warned(topic__orders__flush__size="3") == ["topic.orders.flush.size"]
    assert warned(flush__size="3", topic__orders__segment__ms="60000") == ["flush.size"]


def test_validate_prints_the_quick_starts_setting_and_still_says_ok(tmp_path: Path) -> None:
    config = tmp_path / "users.properties"
    lines = {**CONFIG, "topics": "users", "flush.size": "3"}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    ended = run_here({}, "sink", "validate", str(config))
    assert ended.code == 0
    assert ended.out == "ok: sink users, topics users, to s3://log/topics\n"
    assert ended.err == (
        "warning: `flush.size` makes a segment of every 3 records: 333,334 objects for a million records. "
        "Leave it out, or set at least 1,000; segment.ms and segment.bytes end segments anyway\n"
    )
