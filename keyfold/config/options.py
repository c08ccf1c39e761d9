"""Configuration: one table of options per service, read once, trusted afterwards.

A service declares its options as fields of an `Options` model:

    class SinkOptions(StoreOptions):
        flush_size: Count = option("flush.size", 0, doc="Roll after N records. 0: never.", per_topic=True)
        consumer: Overrides = option("consumer.override.*", Overrides(), doc="Passed to the Kafka client.")

    options = SinkOptions.parse(read_config("sink.json"))
    options.for_topic("users").flush_size

Names are Kafka's and Connect's. A key ending in `.*` gathers all keys with that prefix, without the prefix. A
per-topic value is `topic.<name>.<key>`. Topic names may contain dots, so the longest key that ends the name is meant,
unless only another reading names a topic of `topics`. Precedence: the topic's own value, the general value, the value
followed from Kafka, the default. Every mistake is a `ConfigError` that names the key; no message contains a secret.

`parse` raises on the first mistake; `examine` lists them all. Checks that need several fields are in `contradictions`.
A service that accepts other names translates them in `rewrite`. `keyfold.config.option_docs` prints the same table, and
the REST API serves it to Connect's user interfaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, ValidationError

from keyfold.config.config_file import HIDDEN, read_config, shown, without_secrets
from keyfold.config.option_docs import markdown_table
from keyfold.config.option_fields import (
    Codec,
    Count,
    Flag,
    Importance,
    InvalidOption,
    Kind,
    Millis,
    Names,
    Overrides,
    Port,
    entries,
    option,
    split_names,
)
from keyfold.config.option_table import TOPIC_PREFIX, option_table
from keyfold.errors import ConfigError

__all__ = [
    "HIDDEN",
    "Codec",
    "ConfigError",
    "Count",
    "Examined",
    "Flag",
    "Importance",
    "InvalidOption",
    "Kind",
    "Millis",
    "Names",
    "Note",
    "Options",
    "Overrides",
    "Port",
    "Rewritten",
    "SecretStr",
    "StoreOptions",
    "markdown_table",
    "option",
    "read_config",
    "with_others",
]

O = TypeVar("O", bound="Options")  # noqa: E741 - the usual name of a type of options

_store = partial(option, group="Store")

# Stands for a missing value while the others are checked; every required option takes a string.
_STAND_IN: Final = "missing"


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a key that was accepted."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A configuration in this model's keys. `shown_as` maps a key to the one that was given in its place."""

    values: Mapping[str, str]
    shown_as: Mapping[str, str] = field(default_factory=dict)
    mistakes: tuple[ConfigError, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Examined(Generic[O]):
    """The options of a configuration, or its mistakes; and notes about keys that were accepted."""

    options: O | None
    mistakes: tuple[ConfigError, ...]
    notes: tuple[Note, ...]


class Options(BaseModel):
    """Base of all configuration models. Immutable; field names are Python's, aliases are the keys of the file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    topics_key: ClassVar[str] = "topics"
    """The key whose names tell apart the readings of a per-topic key."""

    _general: dict[str, str] = PrivateAttr(default_factory=dict)
    _by_topic: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)
    _given: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Check a configuration as `read_config` returns it, the per-topic values included.

        Raise the first mistake as `ConfigError`; its hint names the keys of the others.
        """
        found = cls.examine(values)
        if found.options is None:
            raise with_others(found.mistakes)
        return found.options

    @classmethod
    def examine(cls, values: Mapping[str, str]) -> Examined[Self]:
        """Return the options of a configuration, or all its mistakes."""
        table = option_table(cls)
        rewritten = cls.rewrite(values)
        mistakes = [*rewritten.mistakes]
        general: dict[str, str] = {}
        by_topic: dict[str, dict[str, str]] = {}
        listed = split_names(rewritten.values.get(cls.topics_key, ""))
        for key, value in rewritten.values.items():
            if table.knows(key):
                general[key] = value
            elif not key.startswith(TOPIC_PREFIX):
                mistakes.append(table.unknown(key))
            else:
                try:
                    topic, own = table.split_topic_key(key, listed)  # type: ignore[arg-type]  # names
                    by_topic.setdefault(topic, {})[own] = value
                except ConfigError as mistake:
                    mistakes.append(mistake)
        parsed, wrong = cls._checked(general)
        mistakes += [_shown_as(mistake, rewritten.shown_as) for mistake in wrong]
        if parsed is not None:
            parsed._remember(general, by_topic, values)  # noqa: SLF001 - its own class
            said = {str(mistake) for mistake in wrong}
            for topic, own_values in by_topic.items():
                _, wrong = cls._checked({**parsed._general, **own_values})  # noqa: SLF001 - of the same class
                shown_as = {**rewritten.shown_as, **_topic_keys(topic, own_values)}
                mistakes += [_shown_as(mistake, shown_as) for mistake in wrong if str(mistake) not in said]
        clean = tuple(_without_secrets(mistake, values) for mistake in _each_once(mistakes))
        return Examined(None if clean else parsed, clean, rewritten.notes)

    @classmethod
    def rewrite(cls, values: Mapping[str, str]) -> Rewritten:
        """Translate a configuration into this model's keys, if the model accepts others as well."""
        return Rewritten(values)

    def contradictions(self) -> Iterator[ConfigError]:
        """Yield the mistakes that need more than one field. Models add theirs to those of `super()`."""
        return iter(())

    def model_post_init(self, context: Any, /) -> None:
        """Look for contradictions. Raise the first, or append all of them to `context` if it is a list."""
        super().model_post_init(context)
        for mistake in self.contradictions():
            if context is None:
                raise mistake
            context.append(mistake)

    def for_topic(self, topic: str, followed: Mapping[str, str] | None = None) -> Self:
        """Return these options for one topic. `followed` has the topic's settings in Kafka; other keys are ignored."""
        own = self._by_topic.get(topic, {})
        keys = self.followed_keys()
        from_kafka = {key: value for key, value in (followed or {}).items() if key in keys}
        if not own and not from_kafka:
            return self
        found, wrong = self._checked({**from_kafka, **self._general, **own})
        if wrong or found is None:
            shown_as = _topic_keys(topic, own)
            raise with_others([_shown_as(mistake, shown_as) for mistake in wrong])
        found._remember(self._general, self._by_topic, self._given)  # noqa: SLF001 - its own class
        return found

    def shown(self) -> dict[str, str]:
        """Return the configuration as it was given, for others to see.

        Secrets, and users and passwords in URLs, are `HIDDEN`; values that a provider filled in are placeholders again.
        """
        table = option_table(type(self))
        return {key: shown(value, is_secret=table.hides(key)) for key, value in self._given.items()}

    def unhidden(self, shown: Mapping[str, str]) -> dict[str, str]:
        """Return a configuration in which the values that `shown` hides are those of this one."""
        given, known = self._given, self.shown()
        return {key: given[key] if known.get(key) == value else value for key, value in shown.items()}

    def means_the_same(self, shown: Mapping[str, str]) -> bool:
        """Return whether a configuration in the form of `shown` has the same meaning as this one."""
        try:
            other = self.parse(self.unhidden(shown))
        except ConfigError:
            return False
        return dict(self) == dict(other) and self._by_topic == other._by_topic  # noqa: SLF001 - its own class

    @property
    def topics_with_own_values(self) -> tuple[str, ...]:
        """The topics with a `topic.<name>.<key>`."""
        return tuple(self._by_topic)

    def is_set(self, field: str) -> bool:
        """Return whether a field's value was given or followed, and is not the default."""
        return field in self.model_fields_set

    @classmethod
    def followed_keys(cls) -> frozenset[str]:
        """Return the keys that default to the topic's settings in Kafka."""
        return frozenset(entry.key for entry in entries(cls) if entry.followed)

    def _remember(self, general: dict[str, str], by_topic: dict[str, dict[str, str]], given: Mapping[str, str]) -> None:
        self._general, self._by_topic, self._given = general, by_topic, dict(given)

    @classmethod
    def _checked(cls, values: Mapping[str, str]) -> tuple[Self | None, list[ConfigError]]:
        """Return the options of these values, and their mistakes.

        A second check leaves out wrong values, so that contradictions between the others are found, too.
        """
        table = option_table(cls)
        left = dict(values)
        missing: list[str] = []
        wrong: set[str] = set()
        mistakes: list[ConfigError] = []
        for _ in range(2):
            contradictions: list[ConfigError] = []
            gathered = {**table.gather(left), **dict.fromkeys(missing, _STAND_IN)}
            try:
                found = cls.model_validate(gathered, context=contradictions)
            except ConfigError as mistake:
                return None, [*mistakes, mistake]
            except ValidationError as error:
                details = error.errors(include_url=False)
                mistakes += [table.mistake(detail, left) for detail in details]
                wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
                left = {key: value for key, value in left.items() if key not in wrong}
                missing = [key for key in wrong if key in table.entries and table.entries[key].is_required]
            else:
                return found, mistakes + [mistake for mistake in contradictions if mistake.key not in wrong]
        return None, mistakes


class StoreOptions(Options):
    """Where the log is. Values that are not given come from the usual AWS variables and profiles."""

    bucket: str = _store("s3.bucket.name", doc="Bucket of the log.", importance="high", min_length=1)
    topics_dir: str = _store(
        "topics.dir",
        "topics",
        doc="Folder of the log in the bucket. It may contain slashes and may be empty.",
        importance="high",
    )
    region: str | None = _store("s3.region", None, doc="Region of the bucket. Default: AWS_REGION or the profile's.")
    store_url: str | None = _store(
        "store.url",
        None,
        doc="Endpoint of a store other than AWS, such as http://host:port. Default: AWS_ENDPOINT_URL.",
    )
    path_style: Flag | None = _store(
        "s3.path.style.access.enabled",
        None,
        doc="Whether requests have the bucket in the path instead of the host name. Default: true if an endpoint is "
        "set.",
        importance="low",
    )
    access_key_id: str | None = _store(
        "aws.access.key.id",
        None,
        doc="Access key. Default, and preferable: credentials of the environment, the profile or the instance's role.",
    )
    secret_access_key: SecretStr | None = _store(
        "aws.secret.access.key", None, doc="Secret key. Write it as ${env:...} or ${file:...}, not as plain text."
    )
    encryption: Literal["AES256", "aws:kms", "aws:kms:dsse", ""] = _store(
        "s3.ssea.name",
        "",
        doc="Server-side encryption of each object that is written. Default: the bucket's default encryption.",
        importance="low",
        dependents=("s3.sse.kms.key.id",),
    )
    kms_key_id: str = _store(
        "s3.sse.kms.key.id",
        "",
        doc="KMS key for aws:kms. Default: the account's own key. Readers need kms:Decrypt.",
        importance="low",
    )

    @property
    def url(self) -> str:
        """`s3://<bucket>/<topics.dir>`."""
        return f"s3://{self.bucket}/{self.topics_dir}".rstrip("/")

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        if (self.access_key_id is None) != (self.secret_access_key is None):
            given, missing = ("aws.access.key.id", "aws.secret.access.key")
            if self.access_key_id is None:
                given, missing = missing, given
            yield ConfigError(missing, f"`{missing}` is required because `{given}` is set", hint="set both or neither")
        if self.topics_dir.startswith("/") or self.topics_dir.endswith("/"):
            yield ConfigError("topics.dir", "must not begin or end with a slash")
        if self.kms_key_id and not self.encryption.startswith("aws:kms"):
            yield ConfigError(
                "s3.sse.kms.key.id",
                "requires `s3.ssea.name` to be aws:kms or aws:kms:dsse",
                hint="set `s3.ssea.name`, or omit this key",
            )


def _each_once(mistakes: list[ConfigError]) -> Iterator[ConfigError]:
    """Yield the mistakes in order, each of them once."""
    seen: set[tuple[str, str]] = set()
    for mistake in mistakes:
        if (mistake.key, mistake.message) not in seen:
            seen.add((mistake.key, mistake.message))
            yield mistake


def with_others(mistakes: Sequence[ConfigError]) -> ConfigError:
    """Return the first mistake; its hint names the keys of the others."""
    first = mistakes[0]
    others = ", ".join(f"`{key}`" for key in dict.fromkeys(mistake.key for mistake in mistakes) if key != first.key)
    if others:
        first.hint = "; ".join(part for part in (first.hint, f"also wrong: {others}") if part)
    return first


def _topic_keys(topic: str, own: Iterable[str]) -> dict[str, str]:
    return {key: f"{TOPIC_PREFIX}{topic}.{key}" for key in own}


def _shown_as(mistake: ConfigError, shown_as: Mapping[str, str]) -> ConfigError:
    """Return the same mistake under the key that was given."""
    shown = shown_as.get(mistake.key, mistake.key)
    if shown == mistake.key:
        return mistake
    return ConfigError(shown, mistake.message.removeprefix(f"`{mistake.key}`: "), hint=mistake.hint)


def _without_secrets(mistake: ConfigError, values: Mapping[str, str]) -> ConfigError:
    text = mistake.message.removeprefix(f"`{mistake.key}`: ")
    hint = None if mistake.hint is None else without_secrets(mistake.hint, values)
    return ConfigError(mistake.key, without_secrets(text, values), hint=hint)
