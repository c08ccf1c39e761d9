"""A reader with boto3 and fastavro alone, by docs/format.md: manifest, then each segment that it names.

    python -m tests.support.storm.plain CONFIG.json

The process imports nothing of keyfold, and checks that before each turn.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any

import boto3
import fastavro
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.storm import reading
from tests.support.storm.judge import Version
from tests.support.storm.truth import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = {"NoSuchKey", "404"}


class PlainReader:
    """Reads a whole version, segment by segment."""

    name = "plain fastavro"

    def __init__(self, judge: reading.ReadJudge) -> None:
        self._judge = judge
        self._folder = judge.config["topics_dir"]
        self._clients = {
            bucket: boto3.client(
                "s3",
                endpoint_url=url,
                region_name=judge.config["region"],
                aws_access_key_id=judge.config["access_key_id"],
                aws_secret_access_key=judge.config["secret_access_key"],
                config=Config(retries={"mode": "standard"}, s3={"addressing_style": "path"}),
            )
            for bucket, url in judge.config["store_urls"].items()
        }

    def turn(self, spot: reading.Spot) -> None:
        """See `SpotReader.turn`."""
        ours = sorted(name for name in sys.modules if name.partition(".")[0].startswith("keyfold"))
        assert not ours, f"this process has imported {ours}"
        folder = f"{self._folder}/{spot.topic}/partition={spot.partition}/"
        data = self._get(spot.bucket, folder + "_manifest.avro")
        if data is None:
            raise reading.Absent("there is no manifest")
        read_at_ms = time.time_ns() // 1_000_000
        (manifest,) = _records(data)
        rows: list[Row] = []
        for segment in manifest["segments"]:
            data = self._get(spot.bucket, folder + segment["name"])
            if data is None:
                raise reading.Overtaken(f"{segment['name']} of version {manifest['version']} is gone")
            if sha256(data).digest() != segment["checksum"]:
                raise reading.Flaw(f"{segment['name']} at {spot} has another checksum than its manifest says")
            rows += map(_row, _records(data))
        self._judge.judge_snapshot(self.name, spot, _version(manifest, read_at_ms), rows)

    def _get(self, bucket: str, key: str) -> bytes | None:
        try:
            body: bytes = self._clients[bucket].get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:
                return None
            raise reading.NoAnswer(str(error)) from error
        except BotoCoreError as error:
            raise reading.NoAnswer(str(error)) from error
        return body


def _records(data: bytes) -> list[dict[str, Any]]:
    return list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]  # the files are of records


def _row(found: dict[str, Any]) -> Row:
    headers = tuple((header["name"], header["value"]) for header in found["headers"])
    timestamp = (found["timestamp"] - _EPOCH) // timedelta(milliseconds=1)
    return Row(found["offset"], timestamp, found["timestamp_type"], found["key"], found["value"], headers)


def _version(manifest: dict[str, Any], read_at_ms: int) -> Version:
    return Version(
        manifest["log_id"],
        manifest["version"],
        manifest["log_start_offset"],
        manifest["next_offset"],
        manifest["first_dirty_offset"],
        manifest["purged_to"],
        read_at_ms,
        {ancestor["log_id"]: ancestor["next_offset"] for ancestor in manifest["lineage"]},
    )


def make(judge: reading.ReadJudge, _random: Random) -> Sequence[reading.SpotReader]:
    """Return the readers of this process."""
    return [PlainReader(judge)]


if __name__ == "__main__":
    reading.run(make)
