"""The options of a replica's registration: one table, with the same keys for the bucket as every service has.

These are the keys of `keyfold replica add --set KEY=VALUE`; the most common ones have command-line options, too. They
are kept in the source's bucket (`documents`), so they never contain a secret. Credentials are written as `${env:...}`
or `${file:...}`, and the process that opens the bucket fills them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keyfold.config.options import Count, Millis, Names, StoreOptions, option
from keyfold.config.topic_pattern import topic_mistakes
from keyfold.errors import ConfigError
from keyfold.store.api import StoreLocation
from keyfold.store.location import configured_location

MIB: Final = 1024 * 1024

CREDENTIAL_KEYS: Final = ("aws.access.key.id", "aws.secret.access.key")
"""Keys whose values must be placeholders."""

PROFILE_KEY: Final = "aws.profile"

PLACE_KEYS: Final = ("s3.bucket.name", "topics.dir", "store.url")
"""Keys that identify the log directory. With another value it is another replica, which has received nothing yet."""


class ReplicaOptions(StoreOptions):
    """Where a replica is, which topics it takes, and how failed partitions are retried."""

    topics: Names = option(
        "topics", (), doc="Topics to replicate, separated by commas. Without this and `topics.regex`: all."
    )
    topics_regex: str = option(
        "topics.regex", "", doc="Topics to replicate: a regular expression that must match the whole name."
    )
    profile: str | None = option(
        PROFILE_KEY,
        None,
        doc="Profile of the AWS files on the machine that replicates, with rights at the replica. That machine must "
        "allow it with `replica.profile.allowlist.pattern`. Without a profile and access keys, the replica is opened "
        "with that machine's usual AWS variables, never with access keys of the source's configuration.",
        group="Store",
    )
    pin_min_bytes: Count = option(
        "replica.pin.min.bytes",
        64 * MIB,
        doc="A round that copies at least this many bytes holds its version at the source, with one more commit there. "
        "A smaller round does so only after the source has removed an object that it copies.",
        importance="low",
        group="Replication",
    )
    backoff_ms: int = option(
        "replica.retry.backoff.ms",
        100,
        doc="Pause before a failed partition is retried. Each further failure doubles it, with jitter.",
        importance="low",
        group="Replication",
        ge=1,
    )
    backoff_max_ms: int = option(
        "replica.retry.backoff.max.ms",
        60_000,
        doc="Longest pause between two attempts.",
        group="Replication",
        ge=1,
    )
    file_delete_delay_ms: Millis = option(
        "file.delete.delay.ms",
        3_600_000,
        doc="Objects that the replica's manifest no longer lists are kept for this long, by the clock of its store, "
        "for its readers.",
        group="Replication",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        yield from topic_mistakes(self.topics, self.topics_regex)
        if self.backoff_max_ms < self.backoff_ms:
            yield ConfigError("replica.retry.backoff.max.ms", "must not be below `replica.retry.backoff.ms`")
        if self.profile and self.access_key_id:
            yield ConfigError(
                PROFILE_KEY, f"`{PROFILE_KEY}` and `aws.access.key.id` are both set", hint="set one of them"
            )

    def location(self, *, max_connections: int = 16) -> StoreLocation:
        """Return where the bucket is. The placeholders of these options must be filled in."""
        return configured_location(self, max_connections=max_connections, profile=self.profile)
