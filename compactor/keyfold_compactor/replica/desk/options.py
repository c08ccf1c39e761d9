"""What a registration says of a replica: one table, with the same keys for its bucket as every service has for its own.

These are the keys of `keyfold replica add --set KEY=VALUE`; the commonest have options of their own. They are kept in
the source's bucket (`documents`), so they never hold a secret: credentials stand there as `${env:...}` or `${file:...}`
and are filled in by the process that opens the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from keyfold.errors import ConfigError
from keyfold.options import Count, Millis, Names, StoreOptions, option
from keyfold.store.location import configured_location
from keyfold.store.s3 import S3Location
from keyfold_compactor.option_parts import topic_mistakes

MIB: Final = 1024 * 1024

CREDENTIAL_KEYS: Final = ("aws.access.key.id", "aws.secret.access.key")
"""Keys that may be given as placeholders only."""

PROFILE_KEY: Final = "aws.profile"

PLACE_KEYS: Final = ("s3.bucket.name", "topics.dir", "store.url")
"""Keys that say which log directory it is: another value is another replica, which has received nothing yet."""


class ReplicaOptions(StoreOptions):
    """Where a replica is, what it takes, and how it is tried again."""

    topics: Names = option("topics", (), doc="Topics to replicate. Neither this nor topics.regex: all.")
    topics_regex: str = option("topics.regex", "", doc="Regular expression over whole topic names.")
    profile: str | None = option(
        PROFILE_KEY,
        None,
        doc="Profile of the AWS files, on the machine that replicates, with rights at the replica. That machine must "
        "allow it by replica.profile.allowlist.pattern. Where neither this nor keys are given, the replica is opened "
        "by that machine's usual AWS variables, never by keys of the source's configuration.",
        group="Store",
    )
    pin_min_bytes: Count = option(
        "replica.pin.min.bytes",
        64 * MIB,
        doc="A round that has more than this to copy holds its version at the source, by one more commit there; a "
        "smaller one only after the source has removed an object under it.",
        importance="low",
        group="Replication",
    )
    backoff_ms: int = option(
        "replica.retry.backoff.ms",
        100,
        doc="Pause before the second try of a partition that failed; each further one doubles it, with jitter.",
        importance="low",
        group="Replication",
        ge=1,
    )
    backoff_max_ms: int = option(
        "replica.retry.backoff.max.ms",
        60_000,
        doc="The longest pause between two tries.",
        group="Replication",
        ge=1,
    )
    file_delete_delay_ms: Millis = option(
        "file.delete.delay.ms",
        3_600_000,
        doc="Objects that the replica no longer names stay this long, by its own store's time, for its readers.",
        group="Replication",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        yield from topic_mistakes(self.topics, self.topics_regex)
        if self.backoff_max_ms < self.backoff_ms:
            yield ConfigError("replica.retry.backoff.max.ms", "must not be below `replica.retry.backoff.ms`")
        if self.profile and self.access_key_id:
            yield ConfigError(PROFILE_KEY, "is given beside `aws.access.key.id`", hint="give one of them")

    def location(self, *, max_connections: int = 16) -> S3Location:
        """Where the bucket is. Only of options whose placeholders are filled in."""
        return replace(configured_location(self), max_connections=max_connections, profile=self.profile)
