"""Allowlists for the credentials that a configuration written by others may name, such as a replica's registration.

A process resolves every placeholder in its own configuration file, because its operator wrote that file. A registration
is an object in a bucket. A person who may write it chooses both the credentials and the endpoint that receives them. So
the process checks the names in a registration against these lists before it reads or opens anything.

The lists correspond to Kafka's configuration providers: `allowlist.pattern` of `EnvVarConfigProvider`, `allowed.paths`
of `FileConfigProvider`. They are stricter than Kafka's: a name that is not listed is refused, and a link that leads out
of a listed folder is not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from keyfold.errors import ConfigError

VARIABLES_KEY: Final = "replica.env.allowlist.pattern"
PATHS_KEY: Final = "replica.file.allowed.paths"
PROFILES_KEY: Final = "replica.profile.allowlist.pattern"


@dataclass(frozen=True, slots=True)
class AllowedCredentials:
    """Regular expressions for whole names of environment variables and AWS profiles; files, or folders of files."""

    variables: str = "KEYFOLD_REPLICA_.*"
    paths: tuple[str, ...] = ()
    profiles: str = "keyfold-replica-.*"

    def has_variable(self, name: str) -> bool:
        """Return whether an environment variable may be named."""
        return _matches(self.variables, name)

    def has_profile(self, name: str) -> bool:
        """Return whether a profile of the AWS files may be named."""
        return _matches(self.profiles, name)

    def has_file(self, path: str, real_path: Callable[[str], str] = os.path.realpath) -> bool:
        """Return whether a file may be named.

        The path must be absolute, without `..`, and be listed or inside a listed folder. Both must hold for the path as
        written and with its links resolved. Links are resolved only if the path as written is allowed.
        """
        if not path.startswith("/") or ".." in PurePosixPath(path).parts:
            return False
        try:
            return any(
                _is_inside(path, listed) and _is_inside(real_path(path), real_path(listed)) for listed in self.paths
            )
        except ValueError:  # such as a zero byte, which no file name contains
            return False

    def require(self, key: str, kind: str, name: str, asker: str) -> None:
        """Raise `ConfigError` unless `asker` may name this under `key`.

        `kind` is a provider of placeholders (`env`, `file`), or `profile`.
        """
        if kind == "env":
            is_allowed, option = self.has_variable(name), VARIABLES_KEY
            what, allowed = f"environment variable `{name}`", f"variables that match `{self.variables}`"
        elif kind == "file":
            path = name.rpartition(":")[0]
            is_allowed, option = self.has_file(path), PATHS_KEY
            what, allowed = f"file `{path}`", f"files in {', '.join(self.paths)}" if self.paths else "none"
        elif kind == "profile":
            is_allowed, option = self.has_profile(name), PROFILES_KEY
            what, allowed = f"AWS profile `{name}`", f"profiles that match `{self.profiles}`"
        else:
            raise ConfigError(key, f"{asker} names the unknown provider `{kind}`", hint="use `env` or `file`")
        if not is_allowed:
            raise ConfigError(
                key,
                f"{asker} names the {what}, which `{option}` does not allow here",
                hint=f"allowed are {allowed}; name one of them, or set `{option}` in the configuration file of the "
                "process, which commands take as SOURCE",
            )


def _matches(pattern: str, name: str) -> bool:
    # JSON can contain half of a surrogate pair; no name in the operating system can.
    return name.isprintable() and re.fullmatch(pattern, name) is not None


def _is_inside(path: str, listed: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(listed))
