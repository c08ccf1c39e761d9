"""The options of `keyfold replica add` and `edit`, and their translation into configuration keys."""

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
    click.option("--topics", metavar="NAME,...", help="Replicate only these topics. Default: all."),
    click.option("--topics-regex", metavar="REGEX", help="Replicate only topics whose whole name matches."),
    click.option("--endpoint-url", metavar="URL", help="Endpoint of the replica's store, if it is not AWS."),
    click.option("--region", help="Region of the replica's bucket."),
    click.option("--profile", help="AWS profile, on the machine that replicates, with rights at the replica."),
    click.option("--access-key-id", metavar="'${env:VAR}'", help="Reference to the access key, never the key itself."),
    click.option(
        "--secret-access-key", metavar="'${env:VAR}'", help="Reference to the secret key, never the key itself."
    ),
    click.option(
        "--encryption",
        type=click.Choice(["AES256", "aws:kms", "aws:kms:dsse"]),
        help="Server-side encryption at the replica. Default: that of its bucket.",
    ),
    click.option(
        "--kms-key-id", metavar="KEY", help="KMS key for --encryption aws:kms. Default: the account's own key."
    ),
    click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of a replica (docs/configuration.md). Repeatable.",
    ),
)


def replica_options(function: F) -> F:
    """Add the options that say where a replica is and which topics it takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def config_of(to: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the command line by configuration key. Raise `ConfigError` if a key is given twice."""
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
    """Return the changes of `edit`: values by key, None for keys to remove.

    Topics by name replace an earlier regular expression, and the other way round.
    """
    found: dict[str, str | None] = {**config_of(to, options)}
    for key in unset:
        if key in found:
            raise ConfigError(key, "is both set and unset")
        found[key] = None
    if all_topics and ("topics" in found or "topics.regex" in found):
        raise click.UsageError("--all-topics cannot be combined with --topics or --topics-regex")
    if all_topics:
        found |= {"topics": None, "topics.regex": None}
    for key, other in (("topics", "topics.regex"), ("topics.regex", "topics")):
        if found.get(key):
            found.setdefault(other, None)
    if not found:
        raise click.UsageError("nothing to change: give an option (--help lists them)")
    return found
