"""Reader and command against an S3 server: the same log, real errors, real connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import keyfold
from keyfold.errors import AccessDenied, BucketMissing, StoreUnavailable
from keyfold.store.s3 import S3Store
from tests.support.keyfold_here import here
from tests.support.logs import MadeLog, latest_of, record
from tests.support.moto import DROP, Fault, LocalS3Process


@pytest.fixture
def store(local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    opened = S3Store(bucket)
    yield opened
    opened.close()


@pytest.fixture
def made(store: S3Store) -> MadeLog:
    made = MadeLog(store=store, block_bytes=2000)
    batch = [record(o, f"k{o % 40}", None if o % 7 == 0 else f"v{o}" * 20) for o in range(300)]
    for start in range(0, 300, 100):
        made.append(batch[start : start + 100])
    return made


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keyfold.cli", *args], capture_output=True, text=True, check=False, env=dict(os.environ)
    )


def test_the_library_opens_a_log_by_its_url(made: MadeLog, bucket: str) -> None:
    with keyfold.open_log(f"s3://{bucket}/topics", "users") as log:
        records = list(log.read())
        assert [r.offset for r in records] == list(range(300))
        assert list(log.read(from_offset=150, to_offset=160)) == records[150:160]
        assert {r.key: r for r in log.latest()} == latest_of(records)
        made.compact(merge=True)
        assert {r.key: r for r in log.latest()} == latest_of(records)
        assert [r.offset for r in log.read(from_offset=0)] == list(range(260, 300))


def test_the_command_finds_the_bucket_by_the_standard_variables(made: MadeLog, bucket: str) -> None:
    url = f"s3://{bucket}/topics"
    rows = [json.loads(line) for line in run("log", "cat", url, "users", "--json").stdout.splitlines()]
    assert [row["offset"] for row in rows] == list(range(300))
    listed = here("log", "files", url, "users").stdout.splitlines()
    assert listed == [f"s3://{bucket}/{made.place.key(s.name)}" for s in made.manifest.segments]
    done = here("log", "verify", url, "users")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0, f"users-0: ok, 300 records in 3 segments, version {made.manifest.version}",
    )  # fmt: skip


def test_a_missing_bucket_is_reported_in_one_line(store: S3Store) -> None:
    assert store
    with pytest.raises(BucketMissing):
        keyfold.open_log("s3://nobody-has-this/topics", "users").partitions()
    for command in (["list"], ["cat", "users"], ["verify", "users"]):
        done = here("log", command[0], "s3://nobody-has-this/topics", *command[1:])
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert "nobody-has-this" in done.stderr
        assert "Traceback" not in done.stderr


def test_missing_permissions_are_reported_in_one_line(made: MadeLog, bucket: str, local_s3: LocalS3Process) -> None:
    local_s3.set_faults(Fault(r"^GET .*_manifest", status=403, times=-1))
    with keyfold.open_log(f"s3://{bucket}/topics", "users") as log, pytest.raises(AccessDenied):
        log.read()
    done = here("log", "describe", f"s3://{bucket}/topics", "users")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: `{made.place.manifest_key}`")


def test_reads_retry_a_few_faults_and_report_many(made: MadeLog, bucket: str, local_s3: LocalS3Process) -> None:
    local_s3.set_faults(Fault(r"^GET .*\.avro", status=DROP), Fault(r"^GET .*\.avro", status=503))
    with keyfold.open_log(f"s3://{bucket}/topics", "users") as log:
        assert len(list(log.read())) == 300
        local_s3.set_faults(Fault(r"^GET .*-s", status=503, times=-1))
        with pytest.raises(StoreUnavailable):
            list(log.read())
    assert made.manifest.record_count == 300


def test_repair_over_s3(made: MadeLog, store: S3Store, bucket: str) -> None:
    url = f"s3://{bucket}/topics"
    before = here("log", "cat", url, "users", "--json").stdout
    store.delete(made.place.manifest_key)
    done = here("log", "cat", url, "users")
    assert done.returncode == 1
    assert "keyfold log repair" in done.stderr
    assert here("log", "repair", url, "users", "--partition", "0").returncode == 0
    assert here("log", "cat", url, "users", "--json").stdout == before
    assert here("log", "verify", url, "users").returncode == 0
