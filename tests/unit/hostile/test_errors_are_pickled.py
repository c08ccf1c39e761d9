"""Errors are raised in executors and in child processes, and handled where they arrive."""

from __future__ import annotations

import pytest

from keyfold.errors import (
    ConfigError,
    ExtraMissing,
    Fenced,
    FirstCopyUnfinished,
    KeyfoldError,
    LeaseHeld,
    StoreUnavailable,
)
from tests.support.pickled import sent


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("the/key", "no answer", hint="wait"),
        ConfigError("s3.region", "is wrong"),
        Fenced("users", 3, "by epoch 8"),
        FirstCopyUnfinished("users", 3, "12 of 40", hint="wait", replica="dr", segments=40, segments_there=12),
        ExtraMissing("the sink", "sink", "No module named 'orjson'"),
        LeaseHeld("users", 3, "until noon", until_ms=12),
    ],
)
def test_a_pickled_error_arrives_unchanged(error: KeyfoldError) -> None:
    arrived = sent(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
