"""What the configurations of this room's processes have in common.

How they are watched, which topics are meant, and which credentials a replica's registration may name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from keyfold.allowed_credentials import PATHS_KEY, PROFILES_KEY, VARIABLES_KEY, AllowedCredentials
from keyfold.errors import ConfigError
from keyfold.options import Names, Port, StoreOptions, option
from keyfold.topic_pattern import topic_pattern

_DEFAULTS: Final = AllowedCredentials()


class RegistrationOptions(StoreOptions):
    """A process that opens replicas by their registrations, which others may have written."""

    allowed_variables: str = option(
        VARIABLES_KEY,
        _DEFAULTS.variables,
        doc="Regular expression over whole names of the environment variables that a replica's registration may name "
        "as ${env:...}. Whoever may write registrations can have their values sent to an endpoint of their choice, so "
        "allow nothing but the credentials of replicas. Empty: none.",
    )
    allowed_paths: Names = option(
        PATHS_KEY,
        _DEFAULTS.paths,
        doc="Files, and folders of files, that a replica's registration may name as ${file:...}: absolute paths, by "
        "comma. A link that leads out of them is not followed. Default: none.",
    )
    allowed_profiles: str = option(
        PROFILES_KEY,
        _DEFAULTS.profiles,
        doc="Regular expression over whole names of the profiles of the AWS files that a replica's registration may "
        "name in aws.profile. Empty: none.",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        for key, pattern in ((VARIABLES_KEY, self.allowed_variables), (PROFILES_KEY, self.allowed_profiles)):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                yield ConfigError(key, f"is no regular expression: {error}")
        if not all(path.startswith("/") for path in self.allowed_paths):
            yield ConfigError(PATHS_KEY, f"must be absolute paths, not {', '.join(self.allowed_paths)!r}")

    @property
    def allowed_credentials(self) -> AllowedCredentials:
        """Which credentials of this process registrations may name."""
        return AllowedCredentials(self.allowed_variables, self.allowed_paths, self.allowed_profiles)


class ProcessOptions(RegistrationOptions):
    """A process that works on one bucket, as operators watch it."""

    metrics_port: Port = option(
        "metrics.port", 0, doc="Serve metrics for Prometheus on this port while the process lives; 0: not."
    )
    metrics_host: str = option(
        "metrics.host",
        "127.0.0.1",
        doc="Address to serve metrics on; 0.0.0.0 for a scrape from elsewhere. There is no password.",
        importance="low",
        min_length=1,
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "log.level", "info", doc="What is logged on standard error.", importance="low"
    )


def topic_mistakes(topics: Sequence[str], regex: str) -> Iterator[ConfigError]:
    """What is wrong with a choice of topics: by name, or by a regular expression, or neither for all of them."""
    if topics and regex:
        yield ConfigError("topics.regex", "is given beside `topics`", hint="give one of them")
    try:
        topic_pattern(regex)
    except ConfigError as error:
        yield error
