"""Stores by URL.

`s3://<bucket>/<topics.dir>` names a directory of logs. Endpoint, region and credentials come from boto3's usual
sources: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_PROFILE`, the files in `~/.aws`, the instance's role.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from keyfold.errors import ConfigError
from keyfold.store.api import ObjectStore
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location, S3Store

if TYPE_CHECKING:  # a reader of a log does not need pydantic
    from keyfold.config.options import StoreOptions

OpenLocation = Callable[[S3Location, Pacer | None], ObjectStore]
"""A bucket with its endpoint and credentials, and an optional byte-rate limiter -> store."""


def parse_url(url: str, *, key: str = "url") -> tuple[str, str]:
    """Return the bucket and the topics directory of `s3://<bucket>[/<topics.dir>]`.

    The directory has no slash at either end, and is empty for the top of the bucket. Raises `ConfigError` with the
    configuration key `key`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"s3", "s3a", "s3n"}:
        raise ConfigError(key, f"{url!r} is not of the form s3://<bucket>/<topics.dir>")
    bucket, _, path = rest.partition("/")
    if not bucket or any(sign in bucket for sign in "?#@: "):
        raise ConfigError(key, f"{url!r} has no bucket; expected s3://<bucket>/<topics.dir>")
    topics_dir = path.strip("/")
    if topics_dir and any(part in {"", ".", ".."} for part in topics_dir.split("/")):
        raise ConfigError(key, f"the directory of {url!r} has an empty part, `.` or `..`")
    return bucket, topics_dir


def location_of(url: str) -> S3Location:
    """Return the location of the bucket of `url`, with boto3's defaults for everything else."""
    return S3Location(parse_url(url)[0])


def configured_location(options: StoreOptions) -> S3Location:
    """Return the location of the bucket that a configuration describes."""
    secret = options.secret_access_key
    return S3Location(
        bucket=options.bucket,
        region=options.region,
        endpoint_url=options.store_url,
        access_key_id=options.access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        path_style=options.path_style,
        encryption=options.encryption or None,
        kms_key_id=options.kms_key_id or None,
    )


def open_location(location: S3Location, pacer: Pacer | None = None) -> ObjectStore:
    """Open the store at a location."""
    return location.open(pacer)


def open_store(place: str | S3Location, pacer: Pacer | None = None) -> S3Store:
    """Open the store of a URL or of a configured location."""
    location = location_of(place) if isinstance(place, str) else place
    return location.open(pacer)
