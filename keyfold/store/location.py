"""Where stores are: by URL, by configuration, or as a value that opens the same store in another process.

`s3://<bucket>/<topics.dir>` names a directory of logs. Endpoint, region and credentials come from boto3's usual
sources: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_PROFILE`, the files in `~/.aws`, the instance's role.

A new backend is a module with a location and a store, and a row of `BACKENDS`. No other package names a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from keyfold.errors import ConfigError
from keyfold.store.api import DEFAULT_ACCESS, ObjectStore, OpenedStore, StoreAccess, StoreLocation
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location

if TYPE_CHECKING:  # a reader of a log does not need pydantic
    from keyfold.config.options import StoreOptions

BACKENDS: Final[Mapping[str, Callable[[str, StoreAccess], StoreLocation]]] = MappingProxyType(
    dict.fromkeys(("s3", "s3a", "s3n"), S3Location.of)
)
"""The scheme of a URL -> the location of a bucket."""

OpenLocation = Callable[[StoreLocation, Pacer | None], ObjectStore]
"""A bucket with its endpoint and credentials, and an optional byte-rate limiter -> store."""


def parse_url(url: str, *, key: str = "url") -> tuple[str, str]:
    """Return the bucket and the topics directory of `s3://<bucket>[/<topics.dir>]`.

    The directory has no slash at either end, and is empty for the top of the bucket. Raises `ConfigError` with the
    configuration key `key`.
    """
    return _parsed(url, key)[1:]


def _parsed(url: str, key: str) -> tuple[str, str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in BACKENDS:
        raise ConfigError(key, f"{url!r} is not of the form s3://<bucket>/<topics.dir>")
    bucket, _, path = rest.partition("/")
    if not bucket or any(sign in bucket for sign in "?#@: "):
        raise ConfigError(key, f"{url!r} has no bucket; expected s3://<bucket>/<topics.dir>")
    topics_dir = path.strip("/")
    if topics_dir and any(part in {"", ".", ".."} for part in topics_dir.split("/")):
        raise ConfigError(key, f"the directory of {url!r} has an empty part, `.` or `..`")
    return scheme, bucket, topics_dir


def location_of(url: str, access: StoreAccess = DEFAULT_ACCESS) -> StoreLocation:
    """Return the location of the bucket of `url`; for what `access` omits, the backend's usual sources apply."""
    scheme, bucket, _ = _parsed(url, "url")
    return BACKENDS[scheme](bucket, access)


def configured_location(
    options: StoreOptions,
    *,
    profile: str | None = None,
    max_connections: int | None = None,
    read_timeout_s: float | None = None,
) -> StoreLocation:
    """Return the location of the bucket that a configuration describes."""
    secret = options.secret_access_key
    access = StoreAccess(
        region=options.region,
        endpoint_url=options.store_url,
        access_key_id=options.access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        profile=profile,
        path_style=options.path_style,
        encryption=options.encryption or None,
        kms_key_id=options.kms_key_id or None,
    )
    location = BACKENDS["s3"](options.bucket, access)
    return location.adjusted(max_connections=max_connections, read_timeout_s=read_timeout_s)


def open_location(location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
    """Open the store at a location."""
    return location.open(pacer)


def open_store(place: str | StoreLocation, pacer: Pacer | None = None) -> OpenedStore:
    """Open the store of a URL or of a configured location."""
    location = location_of(place) if isinstance(place, str) else place
    return location.open(pacer)


def host_of(store: ObjectStore) -> str:
    """Return the host that a store's requests go to, for messages."""
    location: StoreLocation | None = getattr(store, "location", None)
    return store.url if location is None else location.host
