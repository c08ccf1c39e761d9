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


class RegistryGivenUp(KeyfoldError):
    """The registry has been away for longer than it is to be waited for. No record is to blame."""

    def __init__(self, message: str, lasts_s: float) -> None:
        super().__init__(
            f"{message}; that is so for {lasts_s:.0f} s, and errors.retry.timeout says to wait no longer",
            hint="nothing is lost: the log ends before the first record that could not be checked. Restart the task "
            "when the registry is back, or set errors.retry.timeout=-1 to wait for it",
        )


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
