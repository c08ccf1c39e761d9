"""A local S3 server as its users see it: where it is, who they are, and how they begin."""

from __future__ import annotations

import os
from typing import Any, Final

import boto3
from botocore.config import Config

from keyfold.store.s3 import S3Location
from keyfold_demo.loopback import without_proxy

ACCESS_KEY_ID: Final = "testkey"
SECRET_ACCESS_KEY: Final = "testsecret"
REGION: Final = "us-east-1"


class S3Endpoint:
    """What every kind of local server offers to a test."""

    def __init__(
        self, port: int, access_key_id: str = ACCESS_KEY_ID, secret_access_key: str = SECRET_ACCESS_KEY
    ) -> None:
        self.port = port
        self.access_key_id = access_key_id
        self.secret_access_key = secret_access_key

    @property
    def url(self) -> str:
        """For `endpoint_url`, `store.url` and AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The usual AWS variables, for a child process, and those that keep its requests off a proxy."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            **without_proxy(os.environ),
        }

    def location(self, bucket: str) -> S3Location:
        """A bucket of it, as keyfold opens it."""
        return S3Location(bucket, REGION, self.url, self.access_key_id, self.secret_access_key)

    def client(self) -> Any:
        """A boto3 client that does not retry. Close it."""
        return s3_client(self.url, self.access_key_id, self.secret_access_key)

    def create_bucket(self, name: str) -> str:
        """Make a bucket and give back its name."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


def s3_client(url: str, access_key_id: str = ACCESS_KEY_ID, secret_access_key: str = SECRET_ACCESS_KEY) -> Any:
    """A boto3 client for a local server: path-style, no retries, the test credentials."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
