"""How one option is declared: `option()`, the types of options, and `Entry`, which tells all about one.

An option is a field of a pydantic model (`keyfold.options.Options`); what Kafka's `ConfigDef` has of a key and pydantic
does not know (importance, group, display name, ...) is kept beside it and read back by `entries`.
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
    """Keys that are passed on as they are. May hold passwords, so only the keys are ever shown."""

    def __repr__(self) -> str:
        return f"Overrides({', '.join(sorted(self))})"

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        hidden = core_schema.plain_serializer_function_ser_schema(lambda value: dict.fromkeys(value, "**********"))
        return core_schema.is_instance_schema(cls, serialization=hidden)


class Refused(ValueError):
    """A validator's answer in words of its own, with what to do; the value is not added to it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _flag(value: object) -> object:
    """Kafka's booleans are `true` and `false`, and nothing else."""
    if isinstance(value, str):
        if value.strip().lower() not in {"true", "false"}:
            raise ValueError("must be true or false")
        return value.strip().lower() == "true"
    return value


def split_names(value: object) -> object:
    """A list as Kafka writes it: names separated by commas."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]
Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Count = Annotated[int, Field(ge=0)]
Millis = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Codec = Literal["zstandard", "snappy", "deflate", "null"]
"""`keyfold.log.codec.CODECS`, spelled out: importing that room costs pyarrow, which an idle run does not need."""


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
    """Declare an option: its key, default (none: it must be given), what it does and what it trades.

    `per_topic` allows `topic.<name>.<key>`; `followed` takes the topic's own setting in Kafka where the configuration
    is silent. `group`, `display` (a name for people), `dependents` (keys that this one decides about), `recommended`
    values and `kind` are what Connect's user interfaces ask for; `kind`, values and name follow from the field where
    they are left out. `missing` is a hint for who leaves out what must be given. `constraints` are pydantic's (`ge`,
    `le`, `min_length`, ...).
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
    """All that is declared about one option."""

    field: str
    info: FieldInfo

    @property
    def key(self) -> str:
        """The key in the file; ends in `.*` where it gathers all keys with that prefix."""
        assert self.info.alias is not None, "every option is declared with option()"
        return self.info.alias

    @property
    def is_prefix(self) -> bool:
        """Whether this gathers keys."""
        return self.key.endswith(".*")

    @property
    def doc(self) -> str:
        """What it does, on one line."""
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
        """Whether the topic's own setting counts where the configuration is silent."""
        return bool(self._extra["followed"])

    @property
    def group(self) -> str:
        """Under which heading it stands."""
        return str(self._extra["group"])

    @property
    def display(self) -> str:
        """A name for people."""
        return str(self._extra["display"])

    @property
    def dependents(self) -> list[str]:
        """Keys that this one decides about."""
        return [*self._extra["dependents"]]

    @property
    def recommended(self) -> list[str]:
        """Values to offer: those declared, or all that there are."""
        return [*self._extra["recommended"]] or self.choices

    @property
    def choices(self) -> list[str]:
        """All values there are, where these are few."""
        leaf = self.leaves[0]
        if get_origin(leaf) is Literal:
            return [str(choice) for choice in get_args(leaf) if choice]
        if isinstance(leaf, type) and issubclass(leaf, Enum):
            return [str(choice.value) for choice in leaf]
        return []

    @property
    def missing(self) -> str:
        """A hint for who has left it out."""
        return str(self._extra["missing"])

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.info.is_required()

    @property
    def default(self) -> str | None:
        """The default as text; None where there is none."""
        return (
            None if self.is_required else as_text(self.info.get_default(call_default_factory=True, validated_data={}))
        )

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return SecretStr in self.leaves

    @property
    def is_list(self) -> bool:
        """Whether it holds names separated by commas."""
        return get_origin(self.info.annotation) is tuple

    @property
    def leaves(self) -> list[Any]:
        """The plain types of the field: what is inside unions and Annotated."""
        return [leaf for leaf in _leaves(self.info.annotation) if leaf not in {type(None), Ellipsis}]

    @property
    def kind(self) -> Kind:
        """Kafka's type."""
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
    """The options of a model, as they are declared."""
    for field, info in model.model_fields.items():
        yield Entry(field, info)


def as_text(value: object) -> str | None:
    """A value as it would stand in a file; None for none."""
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
