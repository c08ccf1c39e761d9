"""Credentials of a process that a registration may name, by the configured lists and by resolved paths."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import ConfigError
from keyfold_compactor.options import CompactOptions
from keyfold_replicator.registry.run_options import RunOptions


def test_only_names_with_keyfolds_prefix_are_allowed_by_default() -> None:
    allowed = AllowedCredentials()
    assert allowed.has_variable("KEYFOLD_REPLICA_DR_ID")
    assert allowed.has_profile("keyfold-replica-dr")
    others = ["AWS_SECRET_ACCESS_KEY", "A_KEYFOLD_REPLICA_B", "KEYFOLD_REPLICA", "keyfold_replica_x", ""]
    assert not any(allowed.has_variable(name) for name in others)
    assert not any(allowed.has_profile(name) for name in ("default", "dr", "", "x-keyfold-replica-dr"))
    assert not allowed.has_file("/run/secrets/dr")


def test_a_pattern_is_matched_with_the_whole_name() -> None:
    allowed = AllowedCredentials(variables="DR_ID|DR_SECRET", profiles="")
    assert [allowed.has_variable(name) for name in ("DR_ID", "DR_SECRET")] == [True, True]
    assert not any(allowed.has_variable(name) for name in ("DR_ID_OLD", "MY_DR_SECRET", "DR_ID|DR_SECRET", "DR_ID\n"))
    assert not allowed.has_profile("x")


def test_files_are_allowed_in_listed_folders_and_by_full_path(tmp_path: Path) -> None:
    """A mounted secret is a link to a link inside its folder, as Kubernetes makes it."""
    secrets, alias, other = tmp_path / "secrets", tmp_path / "alias", tmp_path / "other"
    (secrets / "..data").mkdir(parents=True)
    (secrets / "..data" / "dr").write_text("k=v")
    (secrets / "dr").symlink_to("..data/dr")
    other.write_text("k=v")
    alias.symlink_to(secrets)
    allowed = AllowedCredentials(paths=(f"{secrets}/", str(other)))
    for path in (secrets / "dr", secrets / "not-there", other):
        assert allowed.has_file(str(path)), path
    for given in (f"{secrets}-not/dr", f"{alias}/dr", f"{other}/x/..", "dr", "", f"/{secrets}/dr", str(tmp_path)):
        assert not allowed.has_file(given), given
    assert AllowedCredentials(paths=(str(alias),)).has_file(f"{alias}/dr"), "the listed folder may be a link itself"


def test_a_path_written_outside_the_allowed_folders_is_refused_without_a_stat() -> None:
    def look(path: str) -> NoReturn:
        raise AssertionError(path)

    allowed = AllowedCredentials(paths=("/run/secrets",))
    assert not any(allowed.has_file(path, look) for path in ("/etc/shadow", "/run/secrets/../x", "/run/secretsx", "x"))


@pytest.mark.parametrize("model", [RunOptions, CompactOptions])
def test_options_set_the_allowed_names_and_files(model: type[RunOptions | CompactOptions]) -> None:
    config = {"s3.bucket.name": "b"}
    assert model.parse(config).allowed_credentials == AllowedCredentials()
    given = {"replica.env.allowlist.pattern": "DR_.*", "replica.file.allowed.paths": "/run/a, /run/b"}
    given |= {"replica.profile.allowlist.pattern": "dr"}
    found = model.parse({**config, **given}).allowed_credentials
    assert found == AllowedCredentials("DR_.*", ("/run/a", "/run/b"), "dr")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("replica.env.allowlist.pattern", "(", "is not a valid regular expression"),
        ("replica.profile.allowlist.pattern", "a{99999999999999999999}", "is not a valid regular expression"),
        ("replica.file.allowed.paths", "/run/a,secrets", "must be absolute paths"),
    ],
)
def test_an_invalid_list_of_allowed_credentials_is_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        RunOptions.parse({"s3.bucket.name": "b", key: value})
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("env", "X", "environment variable `X`, which `replica.env.allowlist.pattern`"),
        ("file", "/x:k", "file `/x`, which `replica.file.allowed.paths`"),
        ("profile", "x", "AWS profile `x`, which `replica.profile.allowlist.pattern`"),
        ("vault", "x", "the unknown provider `vault`"),
    ],
)
def test_a_refusal_names_the_reference_and_the_option_to_set(kind: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AllowedCredentials().require("aws.profile", kind, name, "the registration of replica `dr`")
    assert words in str(refused.value)
    assert "the registration of replica `dr`" in str(refused.value)
