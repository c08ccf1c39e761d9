"""The declaration of an option: `option()`, the types of options, and `Entry`, which describes one.

An option is a field of a pydantic model (`keyfold.config.options.Options`). The attributes of Kafka's `ConfigDef` that
pydantic does not have (importance, group, display name, ...) are kept with the field, and `entries` returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, GetCoreSchemaHandler, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

Importance = Literal["high", "medium", "low"]
Kind = Literal["BOOLEAN", "STRING", "INT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"]
"""Kafka's types of configuration values."""

_REQUIRED: Final = object()
_INT_MAX: Final = 2**31 - 1
_ACRONYMS: Final = {"s3": "S3", "aws": "AWS", "ms": "(ms)", "url": "URL", "id": "ID", "kms": "KMS", "rest": "REST"}


class Overrides(dict[str, str]):
    """Keys that are passed on unchanged. Values may be passwords, so only the keys are ever shown."""

    def __repr__(self) -> str:
        return f"Overrides({', '.join(sorted(self))})"

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        hidden = core_schema.plain_serializer_function_ser_schema(lambda value: dict.fromkeys(value, "**********"))
        return core_schema.is_instance_schema(cls, serialization=hidden)


class InvalidOption(ValueError):
    """A validator's own error message, with what to do. The value is not appended to it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _flag(value: object) -> object:
    """Parse one of Kafka's booleans, `true` or `false`."""
    if isinstance(value, str):
        if value.strip().lower() not in {"true", "false"}:
            raise ValueError("must be true or false")
        return value.strip().lower() == "true"
    return value


def split_names(value: object) -> object:
    """Parse a list as Kafka writes it: names separated by commas."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]
Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Count = Annotated[int, Field(ge=0)]
Millis = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Codec = Literal["zstandard", "snappy", "deflate", "null"]
"""`keyfold.log.codec.CODECS`, repeated because that module imports pyarrow, which an idle run does not need."""


def option(
    key: str,
    default: Any = _REQUIRED,
    *,
    doc: str,
    importance: Importance = "medium",
    per_topic: bool = False,
    followed: bool = False,
    group: str = "",
    display: str = "",
    dependents: Sequence[str] = (),
    recommended: Sequence[str] = (),
    kind: Kind | None = None,
    missing: str = "",
    **constraints: Any,
) -> Any:
    """Declare an option: its key, its default, and its documentation. An option without a default is required.

    `per_topic` allows `topic.<name>.<key>`; `followed` defaults to the topic's own setting in Kafka. Connect's user
    interfaces show `group`, `display` (the name of the option), `dependents` (keys that depend on this one),
    `recommended` values and `kind`; by default name, values and kind follow from the field. `missing` is the hint of
    the error about a required option that is not given. `constraints` are pydantic's (`ge`, `le`, `min_length`, ...).
    """
    extra: dict[str, Any] = {
        "importance": importance,
        "per_topic": per_topic or followed,
        "followed": followed,
        "group": group,
        "display": display or _display(key),
        "dependents": list(dependents),
        "recommended": list(recommended),
        "kind": kind,
        "missing": missing,
    }
    if default is _REQUIRED:
        return Field(alias=key, description=doc, json_schema_extra=extra, **constraints)
    return Field(default, alias=key, description=doc, json_schema_extra=extra, validate_default=True, **constraints)


@dataclass(frozen=True, slots=True)
class Entry:
    """The declaration of one option."""

    field: str
    info: FieldInfo

    @property
    def key(self) -> str:
        """The key in the file. It ends in `.*` if the option gathers all keys with that prefix."""
        assert self.info.alias is not None, "every option is declared with option()"
        return self.info.alias

    @property
    def is_prefix(self) -> bool:
        """Whether the option gathers all keys with a prefix."""
        return self.key.endswith(".*")

    @property
    def doc(self) -> str:
        """The documentation, on one line."""
        return " ".join((self.info.description or "").split())

    @property
    def importance(self) -> Importance:
        """Kafka's importance."""
        found: Importance = self._extra["importance"]
        return found

    @property
    def per_topic(self) -> bool:
        """Whether `topic.<name>.<key>` is allowed."""
        return bool(self._extra["per_topic"])

    @property
    def followed(self) -> bool:
        """Whether the option defaults to the topic's own setting in Kafka."""
        return bool(self._extra["followed"])

    @property
    def group(self) -> str:
        """The heading of the option in the documentation."""
        return str(self._extra["group"])

    @property
    def display(self) -> str:
        """The name of the option in user interfaces."""
        return str(self._extra["display"])

    @property
    def dependents(self) -> list[str]:
        """The keys that depend on this one."""
        return [*self._extra["dependents"]]

    @property
    def recommended(self) -> list[str]:
        """The values to offer: the declared ones, or all possible values."""
        return [*self._extra["recommended"]] or self.choices

    @property
    def choices(self) -> list[str]:
        """All possible values of an enumeration; empty for other types."""
        leaf = self.leaves[0]
        if get_origin(leaf) is Literal:
            return [str(choice) for choice in get_args(leaf) if choice]
        if isinstance(leaf, type) and issubclass(leaf, Enum):
            return [str(choice.value) for choice in leaf]
        return []

    @property
    def missing(self) -> str:
        """The hint of the error if the option is required and not given."""
        return str(self._extra["missing"])

    @property
    def is_required(self) -> bool:
        """Whether the option must be given."""
        return self.info.is_required()

    @property
    def default(self) -> str | None:
        """The default as text; None if there is no default."""
        return (
            None if self.is_required else as_text(self.info.get_default(call_default_factory=True, validated_data={}))
        )

    @property
    def is_secret(self) -> bool:
        """Whether the value is never shown."""
        return SecretStr in self.leaves

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of names separated by commas."""
        return get_origin(self.info.annotation) is tuple

    @property
    def leaves(self) -> list[Any]:
        """The plain types of the field, without unions and Annotated."""
        return [leaf for leaf in _leaves(self.info.annotation) if leaf not in {type(None), Ellipsis}]

    @property
    def kind(self) -> Kind:
        """Kafka's type of the value."""
        declared: Kind | None = self._extra["kind"]
        if declared is not None:
            return declared
        if self.is_secret:
            return "PASSWORD"
        if self.is_list:
            return "LIST"
        leaf = self.leaves[0]
        if leaf is int:
            limits = [limit.le for limit in self.info.metadata if hasattr(limit, "le")]
            return "INT" if limits and limits[0] <= _INT_MAX else "LONG"
        kinds: dict[Any, Kind] = {bool: "BOOLEAN", float: "DOUBLE"}
        return kinds.get(leaf, "STRING")

    @property
    def _extra(self) -> dict[str, Any]:
        assert isinstance(self.info.json_schema_extra, dict)
        return self.info.json_schema_extra


def entries(model: type[BaseModel]) -> Iterator[Entry]:
    """Yield the options of a model in the order of their declaration."""
    for field, info in model.model_fields.items():
        yield Entry(field, info)


def as_text(value: object) -> str | None:
    """Return a value as a file would have it, or None for None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if isinstance(value, Overrides) else str(getattr(value, "value", value))


def _leaves(annotation: Any) -> list[Any]:
    if get_origin(annotation) is None or get_origin(annotation) is Literal:
        return [annotation]
    return [leaf for part in get_args(annotation) for leaf in _leaves(part)]


def _display(key: str) -> str:
    return " ".join(_ACRONYMS.get(word, word.capitalize()) for word in key.removesuffix(".*").split("."))
