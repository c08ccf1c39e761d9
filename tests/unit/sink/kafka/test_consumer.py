"""Requests to the cluster: one caller asks, and the others wait for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

import pytest

from keyfold.errors import StoreUnavailable, UploadLost
from keyfold.log.objects import create_object
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.source import SourceUnavailable, TopicGone
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue


def test_concurrent_callers_share_an_answer_or_its_failure() -> None:
    """Each request to an unreachable cluster takes its whole time-out, so they must not be sent one after another."""
    clock = ManualClock()
    source = AdminSource({"bootstrap.servers": "127.0.0.1:9", "log_level": "0"}, clock)
    for error in (None, SourceUnavailable("away")):
        clock.advance(5000)
        asked, answer = [0], threading.Event()

        def ask(error: Exception | None = error, asked: list[int] = asked, answer: threading.Event = answer) -> str:
            asked[0] += 1
            assert answer.wait(60)
            if error is not None:
                raise error
            return "id"

        def call(ask: Callable[[], str] = ask) -> str:
            return source._fresh(("topic id", "t"), 1.0, ask)

        with ThreadPoolExecutor(6) as pool:
            calls: list[Future[str]] = [pool.submit(call) for _ in range(6)]
            while pool._work_queue.qsize() or not asked[0]:
                pass
            threading.Event().wait(0.05)  # the others have come to wait by now
            answer.set()
            if error is None:
                assert [c.result(60) for c in calls] == ["id"] * 6
            else:
                assert [type(c.exception(10)) for c in calls] == [SourceUnavailable] * 6
        assert asked == [1]


def test_a_topic_is_gone_only_after_three_answers_without_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        retry = QueueRetry(SerialQueue(pool, lambda _: None), Random(0), Backoff(1, 2), look_again_s=0.001)
        answers: Iterator[TopicGone | str] = iter([TopicGone("t"), TopicGone("t"), "id"])

        def topic_id() -> str:
            answer = next(answers)
            if isinstance(answer, TopicGone):
                raise answer
            return answer

        assert retry.repeat_after(TopicGone, topic_id) == "id"
        answers = iter([TopicGone("t")] * 3)
        with pytest.raises(TopicGone):
            retry.repeat_after(TopicGone, topic_id)


def test_an_upload_deleted_before_its_lost_answer_does_not_end_the_task() -> None:
    """The PUT landed and its answer was lost; a paused writer repeats it just as gc deletes the object."""

    class Collected(MemoryStore):
        def put(self, key: str, data: bytes | bytearray | memoryview, mode: PutMode) -> PutResult:
            try:
                super().put(key, data, mode)
            except Exception:
                self.delete(key)
                raise
            raise StoreUnavailable(key, "the answer was lost")

    with ThreadPoolExecutor(1) as pool:
        retry = QueueRetry(SerialQueue(pool, lambda _: None), Random(0), Backoff(1, 2))
        with pytest.raises(UploadLost, match="was uploaded and deleted again"):
            create_object(Collected(), "key", b"bytes", retry)
