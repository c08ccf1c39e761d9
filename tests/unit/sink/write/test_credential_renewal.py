"""A bucket that refuses requests: credentials are looked up again, and a task waits for them and reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from keyfold.config.config_file import resolve
from keyfold.errors import AccessDenied, CommitUnknown, ConfigError, StoreUnavailable
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import MIN_PART_BYTES, Create, PutMode, PutResult, StoreLocation
from keyfold.store.memory import MemoryStore
from keyfold.store.probe import probe
from keyfold.store.s3 import S3Location
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.status import RunState
from keyfold_sink.task.time_limits import TaskTimings
from keyfold_sink.write.credential_renewal import RENEW_EVERY_S, AccessRefused, RenewingStore, is_refusal, location_now
from tests.support.sink_rig import T0, T1, MakeRig, rigs

HERE = S3Location("b")


class Locked(MemoryStore):
    """A store that refuses what `refuses` selects, and opens after `opens` renewals."""

    def __init__(self, *, opens: int = -1) -> None:
        super().__init__()
        self.refuses: Callable[[str], bool] = lambda _key: False
        self.opens = opens
        self.renewals = 0
        self.asked = 0

    def renew(self, location: StoreLocation) -> None:
        assert location == HERE
        self.renewals += 1
        if self.renewals == self.opens:
            self.refuses = lambda _key: False

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        self.asked += 1
        if self.refuses(key):
            raise AccessDenied(key, "s3:PutObject on bucket b answered 403", hint="s3:PutObject", code="AccessDenied")
        return super().put(key, data, mode)


def locked(opens: int = -1) -> Locked:
    store = Locked(opens=opens)
    store.refuses = lambda _key: True
    return store


def renewing(store: Locked, clock: ManualClock, *, waits: bool = True) -> RenewingStore:
    return RenewingStore(store, lambda: HERE, clock, waits=waits)


def test_a_request_that_new_credentials_allow_succeeds_unnoticed() -> None:
    store = locked(opens=1)
    renewing(store, ManualClock()).put("k", b"x", Create())
    assert (store.asked, store.renewals) == (2, 1)


def test_a_refusal_is_retriable_and_names_the_missing_right() -> None:
    with pytest.raises(AccessRefused) as waits:
        renewing(locked(), ManualClock()).put("k", b"x", Create())
    assert waits.value.retriable
    assert waits.value.code == "AccessDenied"
    assert str(waits.value).count("`k`") == 1
    assert "the store refuses access: s3:PutObject on bucket b answered 403; s3:PutObject" in str(waits.value)
    with pytest.raises(AccessDenied, match="403"):
        renewing(locked(), ManualClock(), waits=False).put("k", b"x", Create())


def test_credentials_are_looked_up_at_intervals_and_not_at_each_refusal() -> None:
    clock, store = ManualClock(), locked()
    access = renewing(store, clock)
    for _ in range(100):
        with pytest.raises(AccessRefused):
            access.put("k", b"x", Create())
    assert store.renewals == 1
    clock.advance(round(RENEW_EVERY_S * 1000))
    with pytest.raises(AccessRefused):
        access.put("k", b"x", Create())
    assert store.renewals == 2
    access.renew()  # on request
    assert store.renewals == 3


def test_one_renewal_serves_all_requests_refused_meanwhile() -> None:
    store = locked()
    access = renewing(store, ManualClock())

    def refused_while_another_renews(_key: str) -> bool:
        store.refuses = lambda _key: False
        access.renew()
        return True

    store.refuses = refused_while_another_renews
    access.put("k", b"x", Create())
    assert store.renewals == 1


def test_unchanged_credentials_are_no_defect() -> None:
    def nowhere() -> StoreLocation:
        raise ConfigError("store.url", "there is no such profile")

    with pytest.raises(AccessRefused):
        RenewingStore(locked(), nowhere, ManualClock(), waits=True).put("k", b"x", Create())


def test_other_errors_pass_unchanged() -> None:
    inner = Locked()
    store = renewing(inner, ManualClock())
    probe(store, "topics", ManualClock(), Random(1))
    upload = store.start_upload("u")
    upload.write(b"x" * MIN_PART_BYTES)
    [row] = store.list_uploads("")
    upload.complete()
    store.start_upload("v").abort()
    store.abort_upload("u", row.upload_id)
    assert store.head("u").size_bytes == MIN_PART_BYTES
    assert store.get_range("u", 0, 1) == store.get("u").data[:1] == b"x"
    assert [info.key for info in store.list("u")] == ["u"]
    store.put("folder/k", b"", Create())
    assert list(store.list_folders("")) == ["folder"]
    store.delete("u")
    assert (inner.renewals, store.url) == (0, inner.url)


def test_a_refused_listing_is_a_refusal() -> None:
    class Closed(Locked):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[object]:  # type: ignore[override]  # fails before the first row
            raise AccessDenied(prefix, "s3:ListBucket on bucket b answered 403")

    store = Closed()
    with pytest.raises(AccessRefused, match="ListBucket"):
        list(renewing(store, ManualClock()).list("x"))
    assert store.renewals == 1


def test_refusals_are_recognised_by_their_error() -> None:
    refusal = AccessRefused("k", "no")
    unknown = CommitUnknown("t", 0, "no certain answer")
    unknown.__cause__ = refusal
    assert is_refusal(refusal)
    assert is_refusal(unknown)
    assert not is_refusal(StoreUnavailable("k", "away"))
    assert not is_refusal("words")


# Where they come from


def test_credentials_are_read_again_from_the_configured_files(tmp_path: Path) -> None:
    secrets = tmp_path / "s3.properties"
    secrets.write_text("id=old-id\nsecret=old-secret\n")
    written = {
        "name": "users",
        "topics": "users",
        "bootstrap.servers": "x",
        "s3.bucket.name": "b",
        "aws.access.key.id": f"${{file:{secrets}:id}}",
        "aws.secret.access.key": f"${{file:{secrets}:secret}}",
    }
    options = SinkOptions.parse(resolve(written, {}))
    assert location_now(options) == options.location
    secrets.write_text("id=new-id\nsecret=new-secret\n")
    now = location_now(options)
    assert isinstance(now, S3Location)
    assert (now.access_key_id, now.secret_access_key) == ("new-id", "new-secret")
    assert now.bucket == "b"
    secrets.unlink()  # it is just being replaced
    assert location_now(options) == options.location


def test_credentials_in_the_configuration_are_kept(tmp_path: Path) -> None:
    values = {"name": "n", "topics": "t", "bootstrap.servers": "x", "s3.bucket.name": "b"}
    keys = {"aws.access.key.id": "id", "aws.secret.access.key": "secret"}
    options = SinkOptions.parse({**values, **keys})
    assert location_now(options) == options.location
    assert isinstance(options.location, S3Location)
    assert options.location.secret_access_key == "secret"


# A task


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs(TaskTimings(commit_timeout_s=0.1)) as build:
        yield build


def test_a_task_whose_rights_are_revoked_waits_reports_it_and_resumes(make: MakeRig) -> None:
    store = Locked()
    rig = make(renewing(store, ManualClock()), segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.next_offset(T0) == 5)
    store.refuses = lambda _key: True
    rig.kafka.produce(T0, range(5, 10))
    rig.until(lambda: rig.says(RunState.UNASSIGNED))
    assert "the store refuses access for 1 partitions" in rig.statuses[-1].trace
    assert "s3:PutObject" in rig.statuses[-1].trace
    status = rig.status(T0)
    assert status is not None
    assert status.blocked_ms > 0
    assert status.lag_records == 5
    store.refuses = lambda _key: False
    rig.until(lambda: rig.next_offset(T0) == 10)
    rig.until(lambda: rig.says(RunState.RUNNING))
    assert rig.statuses[-1].trace == ""


def test_a_task_refused_one_partition_runs_and_names_the_missing_right(make: MakeRig) -> None:
    store = Locked()
    store.refuses = lambda key: "partition=0/" in key
    rig = make(renewing(store, ManualClock()), segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.next_offset(T1) == 5)
    rig.until(lambda: "the store refuses access for" in rig.statuses[-1].trace)
    assert rig.says(RunState.RUNNING)
    store.refuses = lambda _key: False
    rig.until(lambda: rig.next_offset(T0) == 5)


def test_a_task_without_the_right_to_claim_its_partitions_waits(make: MakeRig) -> None:
    store = locked()
    rig = make(renewing(store, ManualClock()), segment__ms="100")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: bool(rig.statuses) and "the store refuses access for" in rig.statuses[-1].trace)
    assert rig.says(RunState.UNASSIGNED)
    store.refuses = lambda _key: False
    rig.until(lambda: rig.next_offset(T0) == 5)
