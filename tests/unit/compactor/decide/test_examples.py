"""The worked examples that people know compaction by."""

from __future__ import annotations

from keyfold.store.memory import MemoryStore
from tests.support.cleaning import clean, load, memory_log, object_names, read_all, record


def kept(store: MemoryStore) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in read_all(store)]


def test_the_last_profile_of_each_user_stays_in_offset_order() -> None:
    store, _ = memory_log(
        [record(0, "user-1", "a"), record(1, "user-2", "b")], [record(2, "user-1", "c"), record(3, "user-3", "d")]
    )
    clean(store)
    assert kept(store) == [(1, b"user-2", b"b"), (2, b"user-1", b"c"), (3, b"user-3", b"d")]


def test_the_last_of_three_addresses_stays() -> None:
    store, _ = memory_log([record(i, "123", f"{name}@example.com") for i, name in enumerate(["bill", "william", "b"])])
    clean(store)
    assert kept(store) == [(2, b"123", b"b@example.com")]


def test_offsets_never_change_and_a_removed_offset_leads_to_the_next_record() -> None:
    store, _ = memory_log([record(i, f"k{i}" if i not in {36, 37} else "k38", "v") for i in range(39)])
    clean(store)
    offsets = [r.offset for r in read_all(store)]
    assert offsets == [*range(36), 38]
    entry = load(store).segments[0]
    assert (entry.base_offset, entry.next_offset) == (0, 39)


def test_a_newer_value_supersedes_the_older_one() -> None:
    store, _ = memory_log([record(0, "K1", "V1"), record(1, "K1", "V2")])
    clean(store)
    assert kept(store) == [(1, b"K1", b"V2")]


def test_a_tombstone_survives_the_first_pass_and_goes_with_the_second() -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", "2"), record(2, "a", None)])
    first = clean(store)
    assert kept(store) == [(1, b"b", b"2"), (2, b"a", None)]
    assert first.partitions[0].marked_tombstones == 1
    second = clean(store, seed=2)
    assert kept(store) == [(1, b"b", b"2")]
    assert second.partitions[0].purged_tombstones == 1
    assert (load(store).purged_to, load(store).next_offset) == (2, 3)


def test_a_third_run_has_nothing_to_do() -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", "2"), record(2, "a", None)])
    for seed in (1, 2):
        clean(store, seed=seed)
    version = load(store).version
    report = clean(store, seed=3)
    assert report.partitions == []
    assert report.quiet_partitions == 1
    assert load(store).version == version
    assert object_names(store) == load(store).object_names()
