"""Configuration: one table of options per service, read once, trusted afterwards.

A service declares its options as fields of an `Options` model:

    class SinkOptions(StoreOptions):
        flush_size: Count = option("flush.size", 0, doc="Roll after this many records; 0: never.", per_topic=True)
        consumer: Overrides = option("consumer.override.*", Overrides(), doc="Passed to the Kafka client.")

    options = SinkOptions.parse(read_config("sink.json"))
    options.for_topic("users").flush_size

Names are Kafka's and Connect's. A key ending in `.*` gathers all keys with that prefix, the prefix taken off. A
per-topic value is `topic.<name>.<key>`; topic names may hold dots, so the longest key that ends the name is meant,
unless only another reading names a topic of `topics`. Who wins: the topic's own value, the general value, what is
followed from Kafka, the default. Every mistake is a `ConfigError` that names the key; no message holds a secret.
`markdown_table` prints the same table for the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, core_schema

from keyfold.config_file import Resolved, read_config
from keyfold.errors import ConfigError

__all__ = [
    "Count",
    "Flag",
    "Importance",
    "Millis",
    "Names",
    "Options",
    "Overrides",
    "SecretStr",
    "StoreOptions",
    "markdown_table",
    "option",
    "read_config",
]

Importance = Literal["high", "medium", "low"]

HIDDEN: Final = "[hidden]"
"""What stands for a secret where a configuration is shown."""

_TOPIC_PREFIX: Final = "topic."
# Keys that are passed on to clients are theirs, so only their names tell which hold a secret.
_SECRET_WORDS: Final = re.compile(
    r"password|passphrase|secret|token|credential|jaas|user\.?info|(?:\.|^)key(?:\.pem)?$"
)
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/?#@\s]*@")
_REQUIRED: Final = object()


class Overrides(dict[str, str]):
    """Keys that are passed on as they are. May hold passwords, so only the keys are ever shown."""

    def __repr__(self) -> str:
        return f"Overrides({', '.join(sorted(self))})"

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        hidden = core_schema.plain_serializer_function_ser_schema(lambda value: dict.fromkeys(value, "**********"))
        return core_schema.is_instance_schema(cls, serialization=hidden)


def _flag(value: object) -> object:
    """Kafka's booleans are `true` and `false`, and nothing else."""
    if isinstance(value, str):
        if value.strip().lower() not in {"true", "false"}:
            raise ValueError("must be true or false")
        return value.strip().lower() == "true"
    return value


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Count = Annotated[int, Field(ge=0)]
Millis = Annotated[int, Field(ge=0)]


def option(
    key: str,
    default: Any = _REQUIRED,
    *,
    doc: str,
    importance: Importance = "medium",
    per_topic: bool = False,
    followed: bool = False,
    **constraints: Any,
) -> Any:
    """Declare an option: its key, default (none: it must be given), what it does and what it trades.

    `per_topic` allows `topic.<name>.<key>`; `followed` takes the topic's own setting in Kafka where the configuration
    is silent. `constraints` are pydantic's (`ge`, `le`, `min_length`, ...).
    """
    extra: dict[str, Any] = {"importance": importance, "per_topic": per_topic or followed, "followed": followed}
    if default is _REQUIRED:
        return Field(alias=key, description=doc, json_schema_extra=extra, **constraints)
    return Field(default, alias=key, description=doc, json_schema_extra=extra, validate_default=True, **constraints)


class Options(BaseModel):
    """Base of all configuration models. Immutable; field names are Python's, aliases are the keys of the file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    topics_key: ClassVar[str] = "topics"
    """The key whose names tell apart the readings of a per-topic key."""

    _general: dict[str, str] = PrivateAttr(default_factory=dict)
    _by_topic: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Check a configuration as `read_config` gives it, the per-topic values included. Raises `ConfigError`."""
        table = _Table(cls)
        listed = tuple(_names(values.get(cls.topics_key, "")))  # type: ignore[arg-type,var-annotated]
        general: dict[str, str] = {}
        by_topic: dict[str, dict[str, str]] = {}
        for key, value in values.items():
            if key.startswith(_TOPIC_PREFIX) and not table.knows(key):
                topic, own = table.split_topic_key(key, listed)
                by_topic.setdefault(topic, {})[own] = value
            elif table.knows(key):
                general[key] = value
            else:
                raise ConfigError(key, "is no key that this configuration knows", hint=table.suggest(key))
        parsed = cls._validated(general)._remember(general, by_topic)  # noqa: SLF001 - its own class
        for topic in by_topic:
            parsed.for_topic(topic)
        return parsed

    def for_topic(self, topic: str, followed: Mapping[str, str] | None = None) -> Self:
        """These options as they are for one topic. `followed` is what Kafka says; other keys in it are ignored."""
        own = self._by_topic.get(topic, {})
        keys = self.followed_keys()
        from_kafka = {key: value for key, value in (followed or {}).items() if key in keys}
        if not own and not from_kafka:
            return self
        found = self._validated({**from_kafka, **self._general, **own}, {key: f"topic.{topic}.{key}" for key in own})
        return found._remember(self._general, self._by_topic)  # noqa: SLF001 - its own class

    def shown(self) -> dict[str, str]:
        """The configuration as it was given, for others to see.

        Secrets are `HIDDEN`, so are users and passwords in URLs; what a provider filled in is its placeholder again.
        """
        table = _Table(type(self))
        return {key: _shown(value, is_secret=table.hides(key)) for key, value in self._given().items()}

    def means_the_same(self, shown: Mapping[str, str]) -> bool:
        """Whether a configuration, as `shown` would have it, says what this one says."""
        given, known = self._given(), self.shown()
        try:
            other = self.parse({key: given[key] if known.get(key) == value else value for key, value in shown.items()})
        except ConfigError:
            return False
        return dict(self) == dict(other) and self._by_topic == other._by_topic  # noqa: SLF001 - its own class

    @property
    def topics_with_own_values(self) -> tuple[str, ...]:
        """Topics that have a `topic.<name>.<key>`."""
        return tuple(self._by_topic)

    def is_set(self, field: str) -> bool:
        """Whether a field's value was given, or followed, rather than being the default."""
        return field in self.model_fields_set

    @classmethod
    def followed_keys(cls) -> frozenset[str]:
        """The keys that are taken from the topic's settings in Kafka where the configuration is silent."""
        return frozenset(_key(info) for info in cls.model_fields.values() if _extra(info)["followed"])

    def _given(self) -> dict[str, str]:
        given = dict(self._general)
        for topic, own in self._by_topic.items():
            given.update({f"{_TOPIC_PREFIX}{topic}.{key}": value for key, value in own.items()})
        return given

    def _remember(self, general: dict[str, str], by_topic: dict[str, dict[str, str]]) -> Self:
        self._general, self._by_topic = general, by_topic
        return self

    @classmethod
    def _validated(cls, values: Mapping[str, str], shown_as: Mapping[str, str] | None = None) -> Self:
        table = _Table(cls)
        try:
            return cls.model_validate(table.gather(values))
        except ValidationError as error:
            raise table.config_error(error.errors(include_url=False), values, shown_as or {}) from None


class StoreOptions(Options):
    """Where the log is. What is left out comes from the usual AWS variables and profiles."""

    bucket: str = option("s3.bucket.name", doc="The bucket of the log.", importance="high", min_length=1)
    topics_dir: str = option(
        "topics.dir",
        "topics",
        doc="Folder of the log in the bucket. May hold slashes, may be empty.",
        importance="high",
    )
    region: str | None = option("s3.region", None, doc="Region of the bucket. Default: AWS_REGION or the profile's.")
    store_url: str | None = option(
        "store.url",
        None,
        doc="Endpoint of a store other than AWS, such as http://host:port. Default: AWS_ENDPOINT_URL.",
    )
    access_key_id: str | None = option(
        "aws.access.key.id", None, doc="Access key. Better left to the environment, the profile or the instance's role."
    )
    secret_access_key: SecretStr | None = option(
        "aws.secret.access.key", None, doc="Secret key; write it as ${env:...} or ${file:...}, not in the file."
    )

    @property
    def url(self) -> str:
        """`s3://<bucket>/<topics.dir>`."""
        return f"s3://{self.bucket}/{self.topics_dir}".rstrip("/")

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            given, missing = ("aws.access.key.id", "aws.secret.access.key")
            if self.access_key_id is None:
                given, missing = missing, given
            raise ConfigError(missing, f"is missing, and `{given}` is given", hint="give both or none")
        if self.topics_dir.startswith("/") or self.topics_dir.endswith("/"):
            raise ConfigError("topics.dir", "must neither begin nor end with a slash")
        return self


class _Table:
    """A model's options by key."""

    def __init__(self, model: type[Options]) -> None:
        self._fields = {_key(info): info for info in model.model_fields.values()}
        self._prefixes = {key[:-1]: key for key in self._fields if key.endswith(".*")}
        self._per_topic = sorted(
            (key for key, info in self._fields.items() if _extra(info)["per_topic"]), key=len, reverse=True
        )

    def knows(self, key: str) -> bool:
        return (key in self._fields and not key.endswith("*")) or self._prefix_of(key) is not None

    def _prefix_of(self, key: str) -> str | None:
        """The longest prefix with something behind it."""
        fitting = [prefix for prefix in self._prefixes if key.startswith(prefix) and len(key) > len(prefix)]
        return max(fitting, key=len, default=None)

    def hides(self, key: str) -> bool:
        """Whether the value of a key, known or not, must not be shown."""
        return (key in self._fields and self._is_secret(key)) or _SECRET_WORDS.search(key.lower()) is not None

    def gather(self, values: Mapping[str, str]) -> dict[str, Any]:
        """What pydantic is given: prefixed keys together under their option."""
        gathered: dict[str, Any] = {}
        for key, value in values.items():
            prefix = None if key in self._fields else self._prefix_of(key)
            if prefix is None:
                gathered[key] = value
            else:
                gathered.setdefault(self._prefixes[prefix], Overrides())[key.removeprefix(prefix)] = value
        return gathered

    def split_topic_key(self, key: str, listed: Iterable[str]) -> tuple[str, str]:
        """Topic and option of `topic.<name>.<key>`. Raises `ConfigError` where no reading is right."""
        rest = key.removeprefix(_TOPIC_PREFIX)
        readings = [(rest[: -len(own) - 1], own) for own in self._per_topic if rest.endswith("." + own)]
        readings = [reading for reading in readings if reading[0]]
        if not readings:
            raise self._no_reading(key, rest)
        named = set(listed)
        known = [reading for reading in readings if reading[0] in named]
        if len(known) > 1:
            both = " or ".join(f"`{own}` of the topic `{topic}`" for topic, own in known)
            raise ConfigError(key, f"may mean {both}", hint="give these topics a configuration each")
        return known[0] if known else readings[0]

    def _no_reading(self, key: str, rest: str) -> ConfigError:
        for known in sorted(self._fields, key=len, reverse=True):
            if rest.endswith("." + known):
                return ConfigError(key, f"`{known}` holds for all topics", hint=f"set `{known}` without a topic")
        parts = rest.split(".")
        ends = [".".join(parts[at:]) for at in range(1, len(parts))]
        ranked = [(SequenceMatcher(None, end, own).ratio(), own, end) for end in ends for own in self._per_topic]
        score, own, end = max(ranked, default=(0.0, "", ""))
        hint = f"did you mean `{key.removesuffix(end)}{own}`?" if score >= 0.7 else None
        return ConfigError(key, "ends in no key that can be set for a single topic", hint=hint)

    def suggest(self, key: str) -> str | None:
        """The nearest key, for a hint."""
        close = get_close_matches(key, [known for known in self._fields if not known.endswith("*")], n=1, cutoff=0.7)
        for prefix in self._prefixes:
            if not close and SequenceMatcher(None, key[: len(prefix)], prefix).ratio() >= 0.8:
                close = [f"{prefix}..."]
        return f"did you mean `{close[0]}`?" if close else None

    def config_error(
        self, errors: list[ErrorDetails], values: Mapping[str, str], shown_as: Mapping[str, str]
    ) -> ConfigError:
        """The first mistake; the keys of the others are in the hint."""
        keys = [str(error["loc"][0]) if error["loc"] else "configuration" for error in errors]
        key = keys[0]
        message = _say(errors[0])
        value = values.get(key)
        if value is not None and not self._is_secret(key) and not isinstance(value, Resolved):
            message += f", not {value!r}"
        others = ", ".join(f"`{shown_as.get(other, other)}`" for other in dict.fromkeys(keys[1:]) if other != key)
        return ConfigError(shown_as.get(key, key), message, hint=f"also wrong: {others}" if others else None)

    def _is_secret(self, key: str) -> bool:
        info = self._fields.get(key)
        return info is None or SecretStr in _leaves(info.annotation)


def _shown(value: str, *, is_secret: bool) -> str:
    if isinstance(value, Resolved):
        return value.written
    return HIDDEN if is_secret else _USER_IN_URL.sub(f"{HIDDEN}@", value)


def _key(info: FieldInfo) -> str:
    assert info.alias is not None, "every option is declared with option()"
    return info.alias


def _extra(info: FieldInfo) -> dict[str, Any]:
    assert isinstance(info.json_schema_extra, dict)
    return info.json_schema_extra


def _say(error: ErrorDetails) -> str:
    """What pydantic found, in an operator's words."""
    context = error.get("ctx", {})
    texts = {
        "missing": "is missing",
        "int_parsing": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_parsing": "must be a number",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "greater_than": f"must be more than {context.get('gt')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "less_than": f"must be less than {context.get('lt')}",
        "string_too_short": "must not be empty",
        "literal_error": f"must be {context.get('expected')}",
        "enum": f"must be {context.get('expected')}",
        "value_error": str(context.get("error")),
    }
    return texts.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]


def _leaves(annotation: Any) -> list[Any]:
    """The plain types inside unions and Annotated."""
    if get_origin(annotation) is None or get_origin(annotation) is Literal:
        return [annotation]
    return [leaf for part in get_args(annotation) for leaf in _leaves(part)]


def markdown_table(model: type[Options]) -> str:
    """The model's options for the documentation: the important ones first, then by name."""
    rank = {name: place for place, name in enumerate(get_args(Importance))}
    fields = sorted(model.model_fields.values(), key=lambda info: (rank[_extra(info)["importance"]], _key(info)))
    lines = ["| key | type | default | importance | what it does |", "| --- | --- | --- | --- | --- |"]
    for info in fields:
        doc = " ".join((info.description or "").split()).replace("|", "\\|").replace("<", "\\<")
        notes = [
            note for wanted, note in (("per_topic", "per topic"), ("followed", "followed")) if _extra(info)[wanted]
        ]
        importance = ", ".join([_extra(info)["importance"], *notes])
        lines.append(f"| `{_key(info)}` | {_type_name(info)} | {_default(info)} | {importance} | {doc} |")
    return "\n".join(lines) + "\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(must be given)"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ("", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{getattr(value, 'value', value)}`"


def _type_name(info: FieldInfo) -> str:
    names = {bool: "boolean", int: "whole number", float: "number", SecretStr: "secret", Overrides: "keys and values"}
    leaves = [leaf for leaf in _leaves(info.annotation) if leaf not in (type(None), Ellipsis)]
    if get_origin(leaves[0]) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(leaves[0]))
    if isinstance(leaves[0], type) and issubclass(leaves[0], Enum):
        return " or ".join(f"`{choice.value}`" for choice in leaves[0])
    if get_origin(info.annotation) is tuple:
        return "list"
    return names.get(leaves[0], "string")
