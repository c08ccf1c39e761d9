"""The documents about replicas, as values.

    source bucket    <topics.dir>/_replicas/<name>.json            a `Registration`: the replica's place and topics
                     <topics.dir>/_replicas/<name>/status.json     the replicator's report
    replica bucket   <topics.dir>/_replica.json                    an `Enablement`: whether compacted logs are accepted

They are JSON (decision 19): small, changed rarely, and read by people when something is wrong. Unknown fields are kept.
They never contain a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.config.config_file import placeholders, resolve
from keyfold.config.topic_pattern import topic_pattern
from keyfold.errors import ConfigError
from keyfold.replicas.options import CREDENTIAL_KEYS, PLACE_KEYS, PROFILE_KEY, ReplicaOptions
from keyfold.runtime.json_types import JsonObject, JsonValue
from keyfold.runtime.retry import Backoff
from keyfold.store.api import StoreLocation
from keyfold.store.documents import DocumentUnreadable

ALL_TOPICS: Final = "*"
REPLICAS_FOLDER: Final = "_replicas/"
ENABLEMENT_NAME: Final = "_replica.json"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLACEHOLDERS_ONLY: Final = re.compile(r"\$\{(env|file):[^}]+\}")
_USER_IN_URL: Final = re.compile(r"://[^/?#\s]*@")


# Keys


def replicas_prefix(topics_dir: str) -> str:
    """Return the key prefix of everything about replicas in the source's bucket."""
    return f"{topics_dir}/{REPLICAS_FOLDER}" if topics_dir else REPLICAS_FOLDER


def registration_key(topics_dir: str, name: str) -> str:
    """Return the key of a registration."""
    return f"{replicas_prefix(topics_dir)}{name}.json"


def status_key(topics_dir: str, name: str) -> str:
    """Return the key of the replicator's report."""
    return f"{replicas_prefix(topics_dir)}{name}/status.json"


def enablement_key(topics_dir: str) -> str:
    """Return the key of the permissions in a replica's bucket."""
    return f"{topics_dir}/{ENABLEMENT_NAME}" if topics_dir else ENABLEMENT_NAME


# A replica, as the source knows it


@dataclass(frozen=True, slots=True)
class Registration:
    """A replica that is registered at the source: its name, and its `config` as written, including placeholders.

    `cursor_id` changes whenever the name stands for another place, so that what the old place has received does not
    count for the new one. Times are by the clock of the process that made the change, and only for people.
    """

    name: str
    config: Mapping[str, str]
    is_paused: bool = False
    cursor_id: str = ""
    added_at_ms: int = 0
    changed_at_ms: int = 0
    version: int = 0
    unknown: Mapping[str, JsonValue] = field(default_factory=dict, compare=False)

    @property
    def hold_name(self) -> str:
        """The name of this replica's hold in the source's manifests (`Hold.replica`)."""
        return f"{self.name}@{self.cursor_id}"

    @property
    def options(self) -> ReplicaOptions:
        """The configuration, with credentials as written. Raise `ConfigError`."""
        return _parsed(tuple(self.config.items()))

    def require_allowed(self, allowed: AllowedCredentials) -> None:
        """Raise `ConfigError` if this names a credential that the process does not allow. Nothing is resolved."""
        asker = f"the registration of replica `{self.name}`"
        for key, value in self.config.items():
            if key not in CREDENTIAL_KEYS:
                _require_no_placeholder(key, value)
            for provider, named in placeholders(value):
                allowed.require(key, provider, named, asker)
        if PROFILE_KEY in self.config:
            allowed.require(PROFILE_KEY, "profile", self.config[PROFILE_KEY], asker)

    def resolved(self, environ: Mapping[str, str], allowed: AllowedCredentials) -> ReplicaOptions:
        """Return the configuration with resolved placeholders.

        Raise a `ConfigError` that names the forbidden variable, file or profile, or the missing variable.
        """
        self.require_allowed(allowed)
        return ReplicaOptions.parse(resolve(self.config, environ))

    def location(
        self, environ: Mapping[str, str], allowed: AllowedCredentials, *, max_connections: int = 16
    ) -> StoreLocation:
        """Return the location of the replica's bucket. Raise `ConfigError` as `resolved` does."""
        return self.resolved(environ, allowed).location(max_connections=max_connections)

    def covers(self, topic: str) -> bool:
        """Whether a topic is to be replicated. This also works for a registration of a newer version.

        Raise `ConfigError` if a regular expression cannot be matched within bounded time.
        """
        return bool(self.choose((topic,)))

    def choose(self, topics: Iterable[str]) -> list[str]:
        """Return the topics to replicate, in name order. Raise as `covers` does."""
        named = {name.strip() for name in self.config.get("topics", "").split(",") if name.strip()}
        if named:
            return sorted(named.intersection(topics))
        regex = self.config.get("topics.regex", "")
        return topic_pattern(regex).choose(topics) if regex else sorted(topics)

    @property
    def url(self) -> str:
        """`s3://<bucket>/<topics.dir>` of the replica."""
        return f"s3://{self.config['s3.bucket.name']}/{self.topics_dir}".rstrip("/")

    @property
    def topics_dir(self) -> str:
        """The replica's folder in its bucket."""
        return self.config.get("topics.dir", "topics")

    @property
    def host(self) -> str:
        """The endpoint or region, for errors of the replica's store."""
        return self.config.get("store.url") or self.config.get("s3.region") or "s3"

    @property
    def backoff(self) -> Backoff:
        """Pauses between retries. Raise `ConfigError`."""
        return Backoff(self.options.backoff_ms, self.options.backoff_max_ms)

    def edited(self, changes: Mapping[str, str | None], *, new_cursor_id: str) -> Registration:
        """Return it with other values; None removes a key. `new_cursor_id` is used if the place changes."""
        config = {**self.config, **{key: value for key, value in changes.items() if value is not None}}
        config = {key: value for key, value in config.items() if changes.get(key, value) is not None}
        moved = any(config.get(key) != self.config.get(key) for key in PLACE_KEYS)
        return replace(self, config=config, cursor_id=new_cursor_id if moved else self.cursor_id)


def require_name(name: str) -> None:
    """Raise `ConfigError` for an invalid name of a replica. Names are parts of keys."""
    if _NAME.fullmatch(name) is None:
        hint = "use up to 64 letters, digits, `.`, `_` and `-`, and begin with a letter or a digit"
        raise ConfigError("name", f"{name!r} is not a valid name", hint=hint)


def require_sound(registration: Registration) -> None:
    """Raise `ConfigError` if a registration cannot be saved as it is."""
    require_name(registration.name)
    for key in registration.config:
        value = registration.config[key]
        if key in CREDENTIAL_KEYS:
            if _PLACEHOLDERS_ONLY.fullmatch(value) is None:
                hint = "write ${env:VARIABLE} or ${file:/path/to.properties:key}, omit both keys, or set `aws.profile`"
                raise ConfigError(key, "would be readable in the source's bucket", hint=hint)
            continue
        _require_no_placeholder(key, value)
        if _USER_IN_URL.search(value):
            raise ConfigError(key, "has a user or a password, which would be readable in the source's bucket")
    _ = registration.options


def _require_no_placeholder(key: str, value: str) -> None:
    if "${" in value:
        raise ConfigError(key, "has a placeholder, which only credentials may have", hint="write the value itself")


@lru_cache(maxsize=256)
def _parsed(config: tuple[tuple[str, str], ...]) -> ReplicaOptions:
    return ReplicaOptions.parse(dict(config))


def registration_document(registration: Registration) -> JsonObject:
    """Return the document as it is stored."""
    return {
        **registration.unknown,
        "name": registration.name,
        "config": dict(registration.config),
        "paused": registration.is_paused,
        "cursor_id": registration.cursor_id,
        "added_at_ms": registration.added_at_ms,
        "changed_at_ms": registration.changed_at_ms,
    }


def registration_of(document: Mapping[str, Any], key: str, version: int = 0) -> Registration:
    """Read a registration. Raise `DocumentUnreadable`."""
    found = dict(document)
    try:
        read = Registration(
            name=str(found.pop("name")),
            config={str(name): _string(value) for name, value in found.pop("config").items()},
            is_paused=_flag(found.pop("paused")),
            cursor_id=str(found.pop("cursor_id")),
            added_at_ms=int(found.pop("added_at_ms")),
            changed_at_ms=int(found.pop("changed_at_ms")),
            version=version,
            unknown=found,
        )
        topic_pattern(read.config.get("topics.regex", ""))
        _ = read.url
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, ConfigError) as error:
        hint = "delete the object and register the replica again; what the replica has received stays"
        raise DocumentUnreadable(key, f"is not the registration of a replica: {error!r}", hint=hint) from error
    if registration_key("", read.name) != f"{REPLICAS_FOLDER}{key.rpartition('/')[2]}":
        raise DocumentUnreadable(key, f"is the registration of another replica, {read.name!r}")
    return read


# Compaction, as the replica wants it


@dataclass(frozen=True, slots=True)
class CompactionEntry:
    """Whether compacted logs are accepted, and the newest log format that the replica's readers know."""

    enabled: bool
    format: int
    changed_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Enablement:
    """Permissions for compaction in a replica's bucket: by topic, and under `ALL_TOPICS` for all others."""

    compaction: Mapping[str, CompactionEntry] = field(default_factory=dict)
    version: int = 0
    unknown: Mapping[str, JsonValue] = field(default_factory=dict, compare=False)

    def entry(self, topic: str) -> CompactionEntry | None:
        """Return the entry that applies to a topic: its own, else the one for all topics, else None."""
        return self.compaction.get(topic) or self.compaction.get(ALL_TOPICS)

    def exceptions(self) -> tuple[str, ...]:
        """Return the topics whose own entries differ from the entry for all topics."""
        for_all = self.compaction.get(ALL_TOPICS)
        if for_all is None:
            return ()
        return tuple(
            topic
            for topic, entry in sorted(self.compaction.items())
            if entry.enabled != for_all.enabled or (entry.enabled and entry.format != for_all.format)
        )


def enablement_document(enablement: Enablement) -> JsonObject:
    """Return the document as it is stored."""
    entries = {
        topic: {"enabled": entry.enabled, "format": entry.format, "changed_at_ms": entry.changed_at_ms}
        for topic, entry in sorted(enablement.compaction.items())
    }
    return {**enablement.unknown, "compaction": entries}


def enablement_of(document: Mapping[str, Any], key: str, version: int = 0) -> Enablement:
    """Read the permissions. Raise `DocumentUnreadable`."""
    found = dict(document)
    try:
        entries = {
            str(topic): CompactionEntry(_flag(e["enabled"]), int(e["format"]), int(e.get("changed_at_ms", 0)))
            for topic, e in found.pop("compaction").items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        hint = "delete the object, and run `keyfold replica enable-compaction` again for the topics that need it"
        raise DocumentUnreadable(key, f"does not say whether compaction is enabled: {error!r}", hint=hint) from error
    return Enablement(entries, version, found)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
