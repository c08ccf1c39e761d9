"""The interface of a Schema Registry, and its errors.

    unknown id, a missing reference             `SchemaUnknown`: the record fails
    408, 429, 5xx, no connection, no answer     `RegistryUnavailable`: retry
    401, 403, an invalid certificate,
    a server that is not a registry             `RegistryRefused`: the configuration is wrong

Calls wait for the network, so they run on threads of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from keyfold.errors import KeyfoldError

SchemaKey = int | str
"""A schema's id, or its GUID if the serializer writes that."""

AVRO: Final = "AVRO"


class RegistryUnavailable(KeyfoldError):
    """The registry does not answer, or reports that it cannot."""

    retriable = True


class RegistryRefused(KeyfoldError):
    """The server refuses requests, or is not a registry."""


class RegistryGivenUp(KeyfoldError):
    """The registry has not answered for longer than `errors.retry.timeout`. No record fails for it."""

    def __init__(self, message: str, lasts_s: float) -> None:
        super().__init__(
            f"{message}; this has lasted for {lasts_s:.0f} s, longer than errors.retry.timeout",
            hint="nothing is lost: the log ends before the first record that could not be checked; restart the task "
            "when the registry answers again, or set errors.retry.timeout=-1 to wait for it",
        )


class SchemaUnknown(Exception):
    """The registry does not have the schema, or a schema that it references."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A registered schema: its type, its text, and the texts of all schemas that it references."""

    kind: str
    text: str
    referenced: tuple[str, ...] = ()


class SchemaRegistry(Protocol):
    """A Schema Registry."""

    url: str

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        """Return the schema of this id or GUID. Raise the errors above. Thread-safe."""

    def close(self) -> None:
        """Close connections."""
