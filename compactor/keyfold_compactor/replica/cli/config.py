"""The options of `keyfold replica add` and `edit`, and the configuration that they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from keyfold.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_KEYS = {
    "topics": "topics",
    "topics_regex": "topics.regex",
    "endpoint_url": "store.url",
    "region": "s3.region",
    "profile": "aws.profile",
    "access_key_id": "aws.access.key.id",
    "secret_access_key": "aws.secret.access.key",
    "encryption": "s3.ssea.name",
    "kms_key_id": "s3.sse.kms.key.id",
}

_OPTIONS = (
    click.option("--topics", metavar="NAME,...", help="Only these topics. Left out: all."),
    click.option("--topics-regex", metavar="REGEX", help="Only topics whose whole name this expression matches."),
    click.option("--endpoint-url", metavar="URL", help="Endpoint of the replica's store, where it is not AWS."),
    click.option("--region", help="Region of the replica's bucket."),
    click.option("--profile", help="Profile of the AWS files, for who replicates, with rights at the replica."),
    click.option("--access-key-id", metavar="'${env:VAR}'", help="Where the access key is found; never itself."),
    click.option("--secret-access-key", metavar="'${env:VAR}'", help="Where the secret key is found; never itself."),
    click.option(
        "--encryption",
        type=click.Choice(["AES256", "aws:kms", "aws:kms:dsse"]),
        help="By the replica's store. Left out: what its bucket does.",
    ),
    click.option("--kms-key-id", metavar="KEY", help="With --encryption aws:kms: a key other than the account's own."),
    click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Any key of docs/configuration.md."),
)


def replica_options(function: F) -> F:
    """The options that say where a replica is and what it takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def config_of(to: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """What was said, by key. Raises `ConfigError` where a key is given twice."""
    from keyfold.store.location import parse_url

    found: dict[str, str] = {}
    if to is not None:
        found["s3.bucket.name"], found["topics.dir"] = parse_url(to, key="--to")
    for name, key in _KEYS.items():
        if options.get(name) is not None:
            found[key] = options[name]
    for pair in options["pairs"]:
        key, is_pair, value = pair.partition("=")
        if not is_pair or not key:
            # The value may be a secret, so only the key is shown.
            raise click.BadParameter(f"{key!r} must be KEY=VALUE", param_hint="--set")
        if found.setdefault(key, value) != value:
            raise ConfigError(key, "is given twice, with different values")
    return found


def changes_of(
    to: str | None, options: Mapping[str, Any], unset: Sequence[str], *, all_topics: bool
) -> dict[str, str | None]:
    """What `edit` changes: values by key, None for those that go.

    To name topics takes away an expression that was there before, and the other way round.
    """
    found: dict[str, str | None] = {**config_of(to, options)}
    for key in unset:
        if key in found:
            raise ConfigError(key, "is given, and to be taken away")
        found[key] = None
    if all_topics and ("topics" in found or "topics.regex" in found):
        raise click.UsageError("--all-topics and the topics to take exclude each other")
    if all_topics:
        found |= {"topics": None, "topics.regex": None}
    for key, other in (("topics", "topics.regex"), ("topics.regex", "topics")):
        if found.get(key):
            found.setdefault(other, None)
    if not found:
        raise click.UsageError("nothing to change was given")
    return found
