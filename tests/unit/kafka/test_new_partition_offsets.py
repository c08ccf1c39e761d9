"""Offsets of a partition whose broker is still taking it over are asked again."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from keyfold.errors import KeyfoldError
from keyfold.kafka import cluster as cluster_module
from keyfold.kafka.client import KafkaError, KafkaException
from keyfold.kafka.cluster import KafkaCluster
from keyfold.kafka.errors import KafkaUnavailable

_TAKING_OVER = (
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


class Admin:
    """Answers requests for offsets with these errors, one each, and then with offset 7."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)

    def list_offsets(self, asked: Any, **_: object) -> dict[Any, Future[SimpleNamespace]]:
        future: Future[SimpleNamespace] = Future()
        if self._errors:
            future.set_exception(KafkaException(KafkaError(self._errors.pop(0))))
        else:
            future.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(asked, future)

    def poll(self, timeout_s: float) -> None:
        """Hear nothing."""


def cluster(admin: Admin, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 60.0) -> KafkaCluster:
    monkeypatch.setattr(cluster_module, "make_admin", lambda settings, contact: admin)
    return KafkaCluster({}, timeout_s=timeout_s)


@pytest.mark.parametrize("code", _TAKING_OVER)
def test_a_broker_that_takes_a_partition_over_is_asked_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster(Admin(code), monkeypatch).ends("users", [0])[0].end_offset == 7


def test_a_broker_that_does_not_finish_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Admin(*[KafkaError.UNKNOWN_LEADER_EPOCH] * 50)
    with pytest.raises(KafkaUnavailable, match="the offsets of users-0"):
        cluster(busy, monkeypatch, timeout_s=0.2).ends("users", [0])


def test_another_error_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyfoldError, match="the offsets of users-0"):
        cluster(Admin(KafkaError.INVALID_REQUEST), monkeypatch).ends("users", [0])
