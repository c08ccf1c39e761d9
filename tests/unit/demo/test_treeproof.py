"""The proof is worth something only if it can fail."""

from __future__ import annotations

import json

import pytest

from keyfold_demo.treeproof import small_changelog
from tests.support.changelog import LARGE, SMALL, Facts, changes, latest_of, root_tree


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=lambda facts: facts.file_name)
def test_the_latest_state_of_a_changelog_is_the_repositorys_tree(facts: Facts) -> None:
    rows = changes(facts)
    latest = latest_of((row.key, row.value) for row in rows)
    assert len(rows) == facts.record_count
    assert len({row.key for row in rows}) == facts.key_count
    assert sum(row.value is None for row in rows) == facts.tombstone_count
    assert len(latest) == facts.latest_count
    assert root_tree(latest) == facts.root_tree


def test_the_demos_copy_is_identical() -> None:
    assert tuple(small_changelog()) == changes(SMALL)


def test_one_old_value_one_lost_key_or_one_returned_key_changes_the_root() -> None:
    rows = changes(SMALL)
    latest = latest_of((row.key, row.value) for row in rows)
    key = next(row.key for row in rows if row.value is not None and latest.get(row.key, row.value) != row.value)
    old = next(row.value for row in rows if row.key == key and row.value is not None)
    deleted = next(row for row in rows if row.value is not None and row.key not in latest)
    assert deleted.value is not None
    assert root_tree({**latest, key: old}) != SMALL.root_tree
    assert root_tree({k: v for k, v in latest.items() if k != key}) != SMALL.root_tree
    assert root_tree({**latest, deleted.key: deleted.value}) != SMALL.root_tree


def test_git_sorts_a_folder_as_if_its_name_ended_in_a_slash() -> None:
    value = json.dumps({"blob": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "mode": "100644"}).encode()
    # `git mktree` of a.b, a/x and a0 gives this name; sorted by bare names it would be another.
    assert root_tree({b"a/x": value, b"a.b": value, b"a0": value}) == "cc6b940246a412b229914418bd12af5e1601ec85"


def test_a_path_that_is_both_file_and_folder_is_refused() -> None:
    value = json.dumps({"blob": "00" * 20, "mode": "100644"}).encode()
    with pytest.raises(ValueError, match="a"):
        root_tree({b"a": value, b"a/b": value})
    with pytest.raises(ValueError, match="a"):
        root_tree({b"a/b": value, b"a": value})
