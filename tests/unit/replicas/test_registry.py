"""Registrations and enablements: written once whatever the store answers, never with a secret, one place one name."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import ConfigError, StoreUnavailable
from keyfold.replicas.documents import ALL_TOPICS, Registration, registration_key
from keyfold.replicas.registry import AlreadyRegistered, EnablementStore, NotRegistered, ReplicaRegistry
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create, ObjectStore
from keyfold.store.documents import DocumentUnreadable
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location
from keyfold.store.wrappers.faults import Call, Chaos, Fault, FaultKind, FaultyStore

DIR = "topics"


def memory() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), content_etags=True)


def registry(store: ObjectStore, seed: int = 0) -> ReplicaRegistry:
    return ReplicaRegistry(store, DIR, ManualClock(), Random(seed))


def replica(name: str = "dr", **config: str) -> Registration:
    return Registration(
        name, {"s3.bucket.name": f"bucket-{name}", **{k.replace("_", "."): v for k, v in config.items()}}
    )


def is_put(call: Call) -> bool:
    return call.operation == "put"


# Registrations


def test_a_registration_is_found_by_name_and_in_the_list() -> None:
    store = memory()
    made = registry(store).add(replica("dr", topics="users,orders"))
    registry(store, 1).add(replica("archive"))
    assert registry(store).load("dr") == made
    assert [found.name for found in registry(store).all()] == ["archive", "dr"]
    assert made.url == "s3://bucket-dr/topics"
    assert made.covers("users")
    assert not made.covers("payments")


def test_a_replica_covers_all_topics_unless_it_names_some() -> None:
    assert replica().covers("anything")
    assert replica(topics_regex="user.*").covers("users")
    assert not replica(topics_regex="user.*").covers("my-users")


def test_a_name_is_registered_once() -> None:
    store = memory()
    registry(store).add(replica())
    with pytest.raises(AlreadyRegistered, match="already registered"):
        registry(store, 1).add(Registration("dr", {"s3.bucket.name": "elsewhere"}))


def test_two_names_for_one_location_are_refused() -> None:
    store = memory()
    registry(store).add(replica())
    with pytest.raises(AlreadyRegistered, match="as the replica `dr`"):
        registry(store, 1).add(Registration("other", {"s3.bucket.name": "bucket-dr", "topics.dir": "topics"}))
    registry(store, 2).add(Registration("third", {"s3.bucket.name": "bucket-third"}))
    with pytest.raises(AlreadyRegistered, match="as the replica `dr`"):
        registry(store, 3).edit("third", {"s3.bucket.name": "bucket-dr"})


def test_the_same_bucket_at_another_endpoint_is_another_location() -> None:
    store = memory()
    registry(store).add(replica())
    registry(store, 1).add(
        Registration("other", {"s3.bucket.name": "bucket-dr", "store.url": "https://s3.example.org"})
    )
    assert len(registry(store).all()) == 2


def test_editing_keeps_omitted_fields_and_clears_those_set_to_none() -> None:
    store = memory()
    registry(store).add(replica(s3_region="eu-west-1", topics="users"))
    edited = registry(store, 1).edit("dr", {"topics": None, "topics.regex": "u.*"})
    assert edited.config == {"s3.bucket.name": "bucket-dr", "s3.region": "eu-west-1", "topics.regex": "u.*"}
    assert registry(store).load("dr") == edited


def test_a_name_moved_to_another_location_has_received_nothing() -> None:
    store = memory()
    before = registry(store).add(replica())
    same = registry(store, 1).edit("dr", {"topics": "users"})
    moved = registry(store, 2).edit("dr", {"s3.bucket.name": "elsewhere"})
    assert before.hold_name == same.hold_name != moved.hold_name
    registry(store).remove("dr")
    again = registry(store, 3).add(replica())
    assert again.hold_name not in {before.hold_name, moved.hold_name}


def test_pause_and_resume_are_stored_and_idempotent() -> None:
    store = memory()
    registry(store).add(replica())
    paused = registry(store, 1).pause("dr")
    assert paused.is_paused
    assert registry(store).load("dr").is_paused
    assert registry(store, 2).pause("dr").version == paused.version
    assert not registry(store, 3).resume("dr").is_paused


def test_an_unregistered_name_is_reported() -> None:
    store = memory()
    for ask in (ReplicaRegistry.load, ReplicaRegistry.pause, ReplicaRegistry.resume, ReplicaRegistry.remove):
        with pytest.raises(NotRegistered, match="no replica `dr`"):
            ask(registry(store), "dr")
    with pytest.raises(NotRegistered):
        registry(store).edit("dr", {"topics": "users"})


def test_removing_a_replica_removes_its_status() -> None:
    store = memory()
    registry(store).add(replica())
    store.put("topics/_replicas/dr/status.json", b"{}", Create())
    registry(store).remove("dr")
    assert [*store.list("topics/_replicas/")] == []
    assert registry(store).all() == ()


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "ü", "x" * 65, "a b"])
def test_replica_names_must_be_valid_in_object_keys(name: str) -> None:
    with pytest.raises(ConfigError, match="`name`"):
        registry(memory()).add(Registration(name, {"s3.bucket.name": "b"}))


# Secrets


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aws.access.key.id", "AKIAEXAMPLE"),
        ("aws.secret.access.key", "hunter22"),
        ("aws.secret.access.key", "x${env:SECRET}"),
        ("aws.secret.access.key", "${env:SECRET}x"),
        ("store.url", "https://user:hunter22@s3.example.org"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(key: str, value: str) -> None:
    config = {
        "s3.bucket.name": "b",
        "aws.access.key.id": "${env:ID}",
        "aws.secret.access.key": "${env:SECRET}",
        key: value,
    }
    store = memory()
    with pytest.raises(ConfigError, match="readable") as refused:
        registry(store).add(Registration("dr", config))
    assert "hunter22" not in str(refused.value)
    assert [*store.list("")] == []


def test_credentials_are_filled_in_only_where_the_bucket_is_opened() -> None:
    config = {"s3.bucket.name": "b", "aws.access.key.id": "${env:ID}", "aws.secret.access.key": "${env:SECRET}"}
    store = memory()
    made = registry(store).add(Registration("dr", config))
    allowed = AllowedCredentials("ID|SECRET")
    location = made.location({"ID": "me", "SECRET": "mine"}, allowed)
    assert isinstance(location, S3Location)
    assert (location.access_key_id, location.secret_access_key) == ("me", "mine")
    assert b"mine" not in store.get(registration_key(DIR, "dr")).data
    with pytest.raises(ConfigError, match="`SECRET` is not set"):
        made.location({"ID": "me"}, allowed)
    with pytest.raises(ConfigError, match="replica `dr` names the environment variable `ID`, which"):
        made.location({"ID": "me", "SECRET": "mine"}, AllowedCredentials())


def test_placeholders_are_for_credentials_alone() -> None:
    with pytest.raises(ConfigError, match="which only credentials may have"):
        registry(memory()).add(replica(s3_region="${env:REGION}"))


def test_a_wrong_value_is_refused_before_anything_is_written() -> None:
    store = memory()
    for config in ({"topics.regex": "("}, {"file.delete.delay.ms": "soon"}, {"no.such.key": "1"}):
        with pytest.raises(ConfigError):
            registry(store).add(Registration("dr", {"s3.bucket.name": "b", **config}))
    assert [*store.list("")] == []


# The objects


def test_fields_of_a_newer_version_are_kept() -> None:
    store = memory()
    registry(store).add(replica())
    key = registration_key(DIR, "dr")
    blob = store.get(key)
    document = {**json.loads(blob.data), "priority": 3}
    store.delete(key)
    store.put(key, json.dumps(document).encode(), Create())
    registry(store, 1).pause("dr")
    assert json.loads(store.get(key).data)["priority"] == 3


def test_an_unreadable_registration_is_not_ignored() -> None:
    store = memory()
    registry(store).add(replica())
    store.put(registration_key(DIR, "broken"), b"{}", Create())
    with pytest.raises(DocumentUnreadable, match="broken"):
        registry(store).all()


def test_a_registration_under_another_replicas_key_is_refused() -> None:
    store = memory()
    registry(store).add(replica())
    data = store.get(registration_key(DIR, "dr")).data
    store.put(registration_key(DIR, "copy"), data, Create())
    with pytest.raises(DocumentUnreadable, match="another replica"):
        registry(store).load("copy")


def test_a_registration_with_a_lost_answer_happens_once() -> None:
    store = FaultyStore(memory(), [Fault(is_put, FaultKind.LOST_ANSWER)])
    made = registry(store).add(replica())
    assert registry(store).load("dr") == made


def test_a_change_with_a_lost_answer_does_not_overwrite_a_later_one() -> None:
    """The answer to a pause is lost, a resume follows, and the repeated pause must not override it."""
    inner = memory()
    registry(inner).add(replica())

    def resume(call: Call) -> None:
        if call.operation == "put" and sum(1 for c in store.calls if c.operation == "put") == 2:
            registry(inner, 7).resume("dr")

    store = FaultyStore(inner, [Fault(is_put, FaultKind.LOST_ANSWER)], on_call=resume)
    registry(store, 1).pause("dr")
    assert not registry(inner).load("dr").is_paused


def test_an_unavailable_store_reports_what_is_unknown() -> None:
    store = FaultyStore(memory(), [Fault(is_put, FaultKind.UNAVAILABLE, times=10**6)])
    with pytest.raises(StoreUnavailable, match="no certain answer"):
        registry(store).add(replica())


# Enablement


def book(store: ObjectStore, seed: int = 0) -> EnablementStore:
    return EnablementStore(store, DIR, ManualClock(), Random(seed))


def test_compaction_is_disabled_by_default() -> None:
    assert book(memory()).load().entry("users") is None


def test_a_topics_own_entry_overrides_the_one_for_all() -> None:
    store = memory()
    book(store).enable(1)
    book(store, 1).disable(1, "users")
    found = book(store).load()
    users, others = found.entry("users"), found.entry("others")
    assert users is not None
    assert not users.enabled
    assert others is not None
    assert others.enabled
    assert others.format == 1
    book(store, 2).enable(2, "users")
    assert book(store).load().compaction.keys() == {ALL_TOPICS, "users"}


def test_enabling_twice_writes_nothing_unless_the_format_is_newer() -> None:
    store = memory()
    first = book(store).enable(1)
    assert book(store, 1).enable(1).version == first.version
    assert book(store, 2).enable(2).version == first.version + 1


def test_an_unreadable_enablement_is_an_error() -> None:
    store = memory()
    store.put("topics/_replica.json", b'{"version": 1, "changes": [], "compaction": {"*": {"enabled": 1}}}', Create())
    with pytest.raises(DocumentUnreadable, match=r"_replica\.json"):
        book(store).load()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["pause", "resume", "edit"]), max_size=6), st.integers(0, 2**16))
def test_every_change_succeeds_for_any_store_answers(asked: list[str], seed: int) -> None:
    random = Random(seed)
    inner = memory()
    registry(inner).add(replica())
    store = FaultyStore(inner, chaos=Chaos(random, 0.3))
    for number, change in enumerate(asked):
        asker = registry(store, number + 1)
        if change == "edit":
            assert asker.edit("dr", {"topics": f"t{number}"}).covers(f"t{number}")
        else:
            assert getattr(asker, change)("dr").is_paused == (change == "pause")
