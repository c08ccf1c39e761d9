"""Registries that lag, hang, refuse, change or are missing; and a store that fails."""

from __future__ import annotations

import json
import threading
import time

import pytest

from keyfold.errors import KeyfoldError, StoreUnavailable
from keyfold.formats.schema_archive import SchemaConflict
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.api import SchemasPending
from keyfold_sink.validate.convert.registry_api import RegistryRefused
from keyfold_sink.validate.convert.schemas import SchemaTimings
from tests.support.avro_cases import framed
from tests.support.avro_checks import ALICE, USER, causes, judged, names, opened, wait
from tests.support.columns import batch
from tests.support.schema_registry import StubRegistry


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_a_registry_that_cannot_answer_now_is_retried(status: int) -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        number = registry.register("users-value", USER)
        registry.answer = status
        column = batch([framed(number, USER, ALICE)])
        registry.hold()
        for _ in range(3):  # nothing is answered meanwhile: the main thread does not wait for it
            with pytest.raises(SchemasPending):
                checks.judge("users", 0, column)
        registry.release()
        while len(registry.requests) < 3:
            time.sleep(0.005)
        assert checks.pending()
        registry.answer = 0
        assert judged(checks, column) == []


def test_a_hanging_registry_blocks_no_caller() -> None:
    with StubRegistry() as registry:
        number = registry.register("users-value", USER)
        registry.hold()
        with opened(registry.url) as checks:
            with pytest.raises(SchemasPending):
                checks.judge("users", 0, batch([framed(number, USER, ALICE)]))
            while len(registry.requests) < 2:  # the first has timed out
                time.sleep(0.01)
            registry.release()
            assert causes(checks, framed(number, USER, ALICE)) == []


def test_closing_does_not_wait_for_a_hanging_registry() -> None:
    with StubRegistry() as registry:
        registry.hold()
        with opened(registry.url, more={"http.read.timeout.ms": "60000"}) as checks:
            with pytest.raises(SchemasPending):
                checks.judge("users", 0, batch([framed(1, USER, ALICE)]))
            while not registry.requests:
                time.sleep(0.01)
            asking = [thread for thread in threading.enumerate() if thread.name.startswith("keyfold-schemas")]
        assert any(thread.is_alive() for thread in asking), "closing waited for the answer"


def test_an_unreachable_registry_is_awaited() -> None:
    with StubRegistry() as registry:
        gone = registry.url
    with opened(gone) as checks:
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, batch([framed(1, USER, ALICE)]))
        time.sleep(0.5)
        assert checks.pending()


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_give_a_hint_and_are_retried_on_demand(status: int) -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        number = registry.register("users-value", USER)
        registry.answer = status
        column = batch([framed(number, USER, ALICE)])
        with pytest.raises(RegistryRefused, match=r"value\.converter\.basic\.auth") as caught:
            judged(checks, column)
        assert not caught.value.retriable
        assert registry.url in str(caught.value)
        registry.answer = 0
        assert judged(checks, column) == []


def test_wrong_credentials_are_not_tried_once_for_each_schema() -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        registry.answer = 401
        column = batch([framed(number, "int", 1) for number in range(1, 501)])
        with pytest.raises(RegistryRefused):
            judged(checks, column)
        assert len(registry.requests) <= 60


@pytest.mark.parametrize(
    ("settings", "asked_for"),
    [
        ({"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "me:s3cret:x"}, "user_info"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "s3cret"}, "bearer"),
    ],
)
def test_credentials_are_sent(settings: dict[str, str], asked_for: str) -> None:
    with StubRegistry() as registry:
        number = registry.register("users-value", USER)
        setattr(registry, asked_for, settings.get("basic.auth.user.info") or settings["bearer.auth.token"])
        with opened(registry.url, more=settings) as checks:
            assert causes(checks, framed(number, USER, ALICE)) == []
        with opened(registry.url) as checks, pytest.raises(RegistryRefused) as caught:
            causes(checks, framed(number, USER, ALICE))
        assert "s3cret" not in str(caught.value)


def test_credentials_in_the_address_are_sent_and_not_shown() -> None:
    with StubRegistry() as registry:
        number = registry.register("users-value", USER)
        registry.user_info = "me:s3cret"
        with opened(registry.url.replace("//", "//me:s3cret@")) as checks:
            assert causes(checks, framed(number, USER, ALICE)) == []
        registry.answer = 403
        with opened(registry.url.replace("//", "//me:s3cret@")) as checks, pytest.raises(RegistryRefused) as caught:
            causes(checks, framed(number, USER, ALICE))
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "page"),
    [(200, b"<html>welcome</html>"), (200, b"{}"), (200, b"[]"), (404, b"<html>no page</html>"), (301, b"")],
)
def test_an_address_without_a_registry_rejects_no_record(status: int, page: bytes) -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        registry.answer, registry.page = status, page
        with pytest.raises(RegistryRefused, match=r"value\.converter\.schema\.registry\.url"):
            causes(checks, framed(1, USER, ALICE))


def test_an_unknown_id_is_final_after_three_answers_and_only_for_a_while() -> None:
    timings = SchemaTimings(look_again_s=0.02, refused_for_s=0.3)
    with StubRegistry() as registry, opened(registry.url, timings=timings) as checks:
        value = framed(1, USER, ALICE)
        assert causes(checks, value) == [(0, "unknown schema")]
        assert len(registry.requests) == 3
        assert causes(checks, value) == [(0, "unknown schema")]
        assert len(registry.requests) == 3
        registry.register("users-value", USER)
        time.sleep(0.35)
        assert causes(checks, value) == []


def test_a_lagging_follower_rejects_no_record() -> None:
    with StubRegistry() as registry, opened(registry.url, timings=SchemaTimings(look_again_s=0.1)) as checks:
        column = batch([framed(1, USER, ALICE)])
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, column)
        while not registry.requests:
            time.sleep(0.002)
        registry.register("users-value", USER)
        assert judged(checks, column) == []


def test_a_batch_may_have_more_new_schemas_than_the_cache_holds() -> None:
    store = MemoryStore()
    with StubRegistry() as registry, opened(registry.url, store=store, more={"schemas.cache.size": "50"}) as checks:
        numbers = [registry.register(f"s{n}", {"type": "fixed", "name": "F", "size": n % 7}) for n in range(210)]
        column = batch([b"\0" + number.to_bytes(4) + bytes(n % 7 + (n == 133)) for n, number in enumerate(numbers)])
        assert [(r.index, r.cause) for r in judged(checks, column)] == [(133, "bytes left over")]
        assert len(names(store)) == 210
        assert len(registry.requests) == 210, "each was asked for once, though not all are held"


def test_two_registries_do_not_share_a_folder() -> None:
    store = MemoryStore()
    with StubRegistry() as mine, StubRegistry() as theirs:
        mine.register("users-value", USER)
        theirs.register("users-value", "string")
        with opened(mine.url, store=store) as checks:
            assert causes(checks, framed(1, USER, ALICE)) == []
        with opened(theirs.url, store=store) as checks, pytest.raises(SchemaConflict) as caught:
            causes(checks, framed(1, "string", "x"))
        assert "logs/_schemas/1.avsc" in str(caught.value)
        assert theirs.url in str(caught.value)
        assert not caught.value.retriable
        assert json.loads(store.get("logs/_schemas/1.avsc").data) == USER


def test_the_same_schema_in_another_layout_is_the_same() -> None:
    store = MemoryStore()
    with StubRegistry() as mine, StubRegistry() as moved:
        mine.register("users-value", USER)
        moved.register("users-value", json.dumps(USER, indent=2, sort_keys=True))
        for registry in (mine, moved, mine):
            with opened(registry.url, store=store) as checks:
                assert causes(checks, framed(1, USER, ALICE)) == []


class _Flaky(MemoryStore):
    """A store whose first writes fail, some of them after they have landed."""

    failures = 3

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        if self.failures:
            self.failures -= 1
            if self.failures == 0:
                super().put(key, data, mode)
            raise StoreUnavailable(key, "is away")
        return super().put(key, data, mode)


def test_a_schema_is_not_known_before_it_is_archived() -> None:
    store = _Flaky()
    with StubRegistry() as registry, opened(registry.url, store=store) as checks:
        registry.register("users-value", USER)
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, batch([framed(1, USER, ALICE)]))
        while store.failures:
            assert checks.pending()
            time.sleep(0.002)
        assert causes(checks, framed(1, USER, ALICE)) == []
        assert names(store) == ["logs/_schemas/1.avsc"]


def test_an_error_not_caused_by_a_record_is_raised_once_and_then_retried() -> None:
    class Broken(MemoryStore):
        writes = 0

        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            self.writes += 1
            raise KeyfoldError("no right to write")

    store = Broken()
    with StubRegistry() as registry, opened(registry.url, store=store) as checks:
        registry.register("a", "int")
        registry.register("b", "int")
        column = batch([framed(1, "int", 1), framed(2, "int", 1)])
        for times in (1, 2, 3):
            with pytest.raises(KeyfoldError, match="no right"):
                judged(checks, column)
            assert store.writes == 2 * times


def test_hundreds_of_unknown_ids_are_requested_concurrently() -> None:
    """Bytes that were never Avro may also begin with a 0 and name any id."""
    slow = {"http.read.timeout.ms": "5000"}
    with StubRegistry() as registry, opened(registry.url, more=slow, timings=SchemaTimings()) as checks:
        number = registry.register("s", "int")
        column = [b"\0" + (n * 7919 + 100).to_bytes(4) + b"x" for n in range(300)]
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, batch(column))
        wait(checks, 60)
        assert len(set(registry.requests[:300])) > 280, "ids wait for the second and third look at others"
        assert len(checks.judge("users", 0, batch(column))) == 300
        assert len(registry.requests) == 900
        assert causes(checks, framed(number, "int", 1)) == []
