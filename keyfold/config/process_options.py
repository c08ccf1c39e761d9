"""Options of a process that works on a bucket: metrics, logging, and credentials that registrations may name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from keyfold.config.allowed_credentials import PATHS_KEY, PROFILES_KEY, VARIABLES_KEY, AllowedCredentials
from keyfold.config.options import Names, Port, StoreOptions, option
from keyfold.errors import ConfigError

_DEFAULTS: Final = AllowedCredentials()


class RegistrationOptions(StoreOptions):
    """A process that opens replicas according to their registrations, which others may have written."""

    allowed_variables: str = option(
        VARIABLES_KEY,
        _DEFAULTS.variables,
        doc="Environment variables that a replica's registration may name as ${env:...}: a regular expression that "
        "must match the whole name. A person who may write registrations can have these values sent to any endpoint, "
        "so allow nothing but credentials of replicas. Empty: none.",
    )
    allowed_paths: Names = option(
        PATHS_KEY,
        _DEFAULTS.paths,
        doc="Files, and folders of files, that a replica's registration may name as ${file:...}: absolute paths, "
        "separated by commas. A link that leads out of an allowed folder is refused. Default: none.",
    )
    allowed_profiles: str = option(
        PROFILES_KEY,
        _DEFAULTS.profiles,
        doc="Profiles of the AWS files that a replica's registration may name in `aws.profile`: a regular expression "
        "that must match the whole name. Empty: none.",
    )

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        for key, pattern in ((VARIABLES_KEY, self.allowed_variables), (PROFILES_KEY, self.allowed_profiles)):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                yield ConfigError(key, f"is not a valid regular expression: {error}")
        if not all(path.startswith("/") for path in self.allowed_paths):
            yield ConfigError(PATHS_KEY, f"must be absolute paths, not {', '.join(self.allowed_paths)!r}")

    @property
    def allowed_credentials(self) -> AllowedCredentials:
        """The credentials of this process that registrations may name."""
        return AllowedCredentials(self.allowed_variables, self.allowed_paths, self.allowed_profiles)


class ProcessOptions(RegistrationOptions):
    """A process that works on one bucket: its metrics and its log."""

    metrics_port: Port = option(
        "metrics.port", 0, doc="Port that serves metrics for Prometheus while the process runs. 0: none."
    )
    metrics_host: str = option(
        "metrics.host",
        "127.0.0.1",
        doc="Address of `metrics.port`. 0.0.0.0: other machines can connect. There is no password.",
        importance="low",
        min_length=1,
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "log.level", "info", doc="Lowest level of events that are logged on standard error.", importance="low"
    )
