"""`keyfold compact` beside replicas, from the command line: what it holds and says, and rounds after its runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext, open_by_url
from keyfold.replicas.documents import registration_key
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Update
from keyfold.store.s3 import S3Location
from tests.integration.test_compactor_command import fill
from tests.support import compact_command
from tests.support.cleaning import load, read_all
from tests.support.moto import LocalS3Process

config = partial(compact_command.config, spark_master=compact_command.NO_SPARK)
TOPICS = "topics"


Said = tuple[int, str, str]
"""Exit code, standard output, standard error."""


@pytest.fixture
def keyfold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], location: S3Location
) -> Callable[..., Said]:
    """The command in this process, with the replica's credentials in the environment."""
    monkeypatch.setenv("KEYFOLD_REPLICA_ID", str(location.access_key_id))
    monkeypatch.setenv("KEYFOLD_REPLICA_SECRET", str(location.secret_access_key))

    def keyfold(*arguments: str) -> Said:
        code = run(list(arguments), CliContext(open_by_url, SystemClock(), Random()))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return keyfold


def keys(location: S3Location) -> Sequence[str]:
    return (
        "--endpoint-url",
        str(location.endpoint_url),
        "--access-key-id",
        "${env:KEYFOLD_REPLICA_ID}",
        "--secret-access-key",
        "${env:KEYFOLD_REPLICA_SECRET}",
    )


def test_a_run_with_nothing_to_clean_replicates_new_data_without_spark(
    tmp_path: Path, location: S3Location, local_s3: LocalS3Process, keyfold: Callable[..., Said]
) -> None:
    place = fill(location)
    there = replace(location, bucket=local_s3.create_bucket(f"{location.bucket}-replica"))
    url = f"s3://{there.bucket}/topics"
    source, far = location.open(), there.open()
    try:
        done = keyfold("replica", "add", config(tmp_path, location), "dr", "--to", url, *keys(location))
        assert done[0] == 0, done
        idle = config(tmp_path, location, min_cleanable_dirty_ratio="1", replicas_run="true")
        done = keyfold("compact", "run", idle, "--once", "--json")
        assert done[0] == 0, done
        report = json.loads(done[1])
        assert report["partitions_cleaned"] == 0
        assert report["replicas"][0]["carried"]["commits"] == 1
        assert read_all(far, load(far, place), place) == read_all(source, load(source, place), place)
        received = load(source, place).holds[0].received_to
        assert received == load(source, place).next_offset
        done = keyfold("compact", "run", idle, "--once")
        assert "dr: 1 of 1 partition in sync" in done[1]
        assert "carried" not in done[1]
        done = keyfold("compact", "plan", config(tmp_path, there))
        assert "users-0: skip: this log is a replica of " in done[1]
    finally:
        source.close()
        far.close()


def test_an_unreadable_registration_is_reported_beside_the_plan_not_in_it(
    tmp_path: Path, location: S3Location, keyfold: Callable[..., Said]
) -> None:
    fill(location)
    store = location.open()
    try:
        keyfold("replica", "add", config(tmp_path, location), "dr", "--to", "s3://elsewhere/topics", "--no-probe")
        key = registration_key(TOPICS, "dr")
        store.put(key, b"{", Update(store.get(key).etag))
    finally:
        store.close()
    code, out, err = keyfold("compact", "plan", config(tmp_path, location), "--json")
    assert code == 0, err
    assert json.loads(out)["partitions_looked_at"] == 1
    assert "the registration of replica dr cannot be read" in err
