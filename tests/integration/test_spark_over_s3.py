"""The readers over S3: by Spark's own S3A file system where the session has it, by keyfold where it has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import open_log
from keyfold.runtime.clock import ManualClock
from keyfold.store.location import parse_url
from keyfold_demo.java import default_cache, s3a_jars
from tests.conftest import fresh
from tests.support.cleaning import new_run
from tests.support.iam import Policy
from tests.support.iam_recorder import IamS3
from tests.support.iam_scenes import policies
from tests.support.logs import MadeLog
from tests.support.moto import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, LocalS3Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SEGMENTS: Final = 40


@pytest.fixture
def url(local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log of two partitions with a clean tail and a dirty head; the environment leads every client to it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", local_s3.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    url = f"s3://{bucket}/topics"
    with open_log(url, "users") as log:
        made = [MadeLog(store=log.store, place=Place("topics", "users", p), random=Random(p)) for p in (0, 1)]
        for one in made:
            one.append([Record(at, at, "CreateTime", b"%d" % (at % 9), b"v" * 50) for at in range(100)])
        new_run(log.store, clock=ManualClock()).clean([one.place for one in made])
        for one in made:
            one.append([Record(at, at, "CreateTime", b"%d" % (at % 4), None if at % 4 else b"x") for at in (100, 101)])
    return url


def expected(url: str) -> dict[str, list[list[int]]]:
    with open_log(url, "users") as log:
        return {
            "log": [[p, r.offset] for p in log.partitions() for r in log.read(p)],
            "latest": [[p, r.offset] for p in log.partitions() for r in log.latest(p)],
        }


def over_s3a(url: str, work: Path) -> dict[str, Any]:
    """What `tests.support.spark_over_s3` prints."""
    program = [sys.executable, "-m", "tests.support.spark_over_s3", str(s3a_jars(default_cache())), str(work)]
    answer = subprocess.run(
        [*program, url, "users"], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False, timeout=300
    )
    assert answer.returncode == 0, answer.stderr[-3_000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.full
def test_a_session_with_s3a_reads_through_it(url: str, tmp_path: Path) -> None:
    assert over_s3a(url, tmp_path) == {"root": url.replace("s3:", "s3a:").removesuffix("/topics"), **expected(url)}


def folders(bucket: str, topic: str) -> Policy:
    """What docs/operations/iam.md gives to Spark's own S3 client besides the policy `reader`."""
    names = ("", "/partition=*")
    resources = [f"arn:aws:s3:::{bucket}/{topic}{name}" for name in names]
    said = {"Sid": "Folders", "Effect": "Allow", "Action": "s3:GetObject", "Resource": resources}
    return Policy.parse("folders", {"Version": "2012-10-17", "Statement": [said]})


@pytest.mark.full
def test_spark_lists_a_folder_and_does_not_ask_for_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with IamS3() as s3:
        bucket = s3.create_bucket(fresh("bucket"))
        user = s3.add_user("reader", *policies(bucket, "reader"), folders(bucket, "topics/users"))
        for name, value in {**s3.environment, "AWS_ACCESS_KEY_ID": "reader"}.items():
            monkeypatch.setenv(name, value)
        store = s3.location(bucket).open()
        made = MadeLog(store=store, place=Place("topics", "users", 0), random=Random(0))
        for at in range(SEGMENTS):
            made.append([Record(at, at, "CreateTime", b"%d" % (at % 9), b"v" * 50)])
        store.close()
        found = over_s3a(f"s3://{bucket}/topics", tmp_path)
        assert len(found["log"]) == SEGMENTS
        assert len(found["latest"]) == 9
        assert not user.refused
        # `read_log` opens the segments, `latest_state` indexes and segments. For each of them, Hadoop's client asks
        # twice for the size and once for the bytes.
        assert sum(call.action.startswith("s3:") for call in user.allowed) <= 9 * SEGMENTS + 40


@pytest.mark.full
@pytest.mark.any_spark
def test_a_session_without_a_file_system_reads_through_keyfold(
    spark: SparkSession, local_s3: LocalS3Process, url: str
) -> None:
    from keyfold.spark import latest_state, read_log

    # Tasks have the environment in which their JVM was started, so here the store must say all by itself.
    store = local_s3.location(parse_url(url)[0]).open()
    found = {
        "log": sorted([r.partition, r.offset] for r in read_log(spark, url, "users", store=store).collect()),
        "latest": sorted([r.partition, r.offset] for r in latest_state(spark, url, "users", store=store).collect()),
    }
    store.close()
    assert found == expected(url)
