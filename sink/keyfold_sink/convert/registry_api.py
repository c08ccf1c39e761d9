"""What is asked of a Schema Registry, and what its answers mean.

    unknown id, a reference that is gone        `SchemaUnknown`: the record is to blame
    408, 429, 5xx, no connection, no answer     `RegistryUnavailable`: ask again
    401, 403, a certificate that is not valid,
    an address where no registry is             `RegistryRefused`: somebody must look at the configuration

Calls wait for the network, so they belong on threads of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from keyfold.errors import KeyfoldError

SchemaKey = int | str
"""A schema's id, or where a serializer writes that its GUID."""

AVRO: Final = "AVRO"


class RegistryUnavailable(KeyfoldError):
    """The registry does not answer now, or says that it cannot."""

    retriable = True


class RegistryRefused(KeyfoldError):
    """The registry refuses to answer, or is not one."""


class SchemaUnknown(Exception):
    """The registry does not know the schema, or something that it refers to."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as it was registered: what language it is of, its text, and the texts of all that it refers to."""

    kind: str
    text: str
    referenced: tuple[str, ...] = ()


class Registry(Protocol):
    """Who knows schemas."""

    url: str

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        """The schema of this id or GUID. Raises the errors above; may be called from several threads."""

    def close(self) -> None:
        """Close connections."""
