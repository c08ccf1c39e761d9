"""Make the buckets, the topic and, where REPLICA names one, the replica that are tried out; what is there stays."""

# ruff: noqa: INP001 - a script, of no package

import os
import subprocess
import sys
import time

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

BUCKETS = ("log", "log-dr")
WAIT_TIMEOUT_S = 60


def make_buckets() -> None:
    """Make both buckets; the store may still be starting."""
    client = boto3.client("s3")
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    try:
        while True:
            try:
                there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
                for bucket in BUCKETS:
                    if bucket not in there:
                        client.create_bucket(Bucket=bucket)
            except (BotoCoreError, ClientError) as error:
                if time.monotonic() > deadline:
                    sys.exit(f"the store does not answer: {error}")
                time.sleep(1)
            else:
                return
    finally:
        client.close()


def make_topic() -> None:
    """Make the compacted topic `users` with three partitions."""
    admin = AdminClient({"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"]})
    if "users" in admin.list_topics(timeout=30).topics:
        return
    topic = NewTopic("users", num_partitions=3, replication_factor=1, config={"cleanup.policy": "compact"})
    try:
        admin.create_topics([topic])["users"].result(timeout=30)
    except KafkaException as error:
        sys.exit(f"the topic could not be made: {error}")


def make_replica(name: str) -> None:
    """Register a replica in the second bucket, and let compacted logs come to it."""
    listed = keyfold("replica", "list", "s3://log/topics", "--json")
    if f'"{name}"' not in listed:
        keyfold("replica", "add", "s3://log/topics", name, "--to", "s3://log-dr/topics")
    keyfold("replica", "enable-compaction", "s3://log-dr/topics")


def keyfold(*arguments: str) -> str:
    """What a command printed; leaves where it fails."""
    answer = subprocess.run(["keyfold", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - in its image
    sys.stderr.write(answer.stdout + answer.stderr)
    if answer.returncode != 0:
        sys.exit(answer.returncode)
    return answer.stdout


if __name__ == "__main__":
    make_buckets()
    make_topic()
    if os.environ.get("REPLICA"):
        make_replica(os.environ["REPLICA"])
