"""A Schema Registry over HTTP with Confluent's client; `registry_api` describes its errors.

The client neither retries nor caches here: its caller does both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, cast

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.error import OAuthTokenError

from keyfold.errors import ConfigError, KeyfoldError
from keyfold_sink.config.registry_settings import RegistrySettings
from keyfold_sink.validate.convert.registry_api import (
    AVRO,
    RegisteredSchema,
    RegistryRefused,
    RegistryUnavailable,
    SchemaKey,
    SchemaUnknown,
)

_RETRIABLE: Final = frozenset({408, 425, 429})
# The registry's own codes for "not found": id, subject, version, GUID. A 404 of another web server has none of them.
_NOT_FOUND: Final = range(40400, 40500)
_CLIENT_CACHE: Final = 500
_REFERENCES_MAX: Final = 1000

T = TypeVar("T")


class ConfluentRegistry:
    """A registry with Confluent's API."""

    def __init__(self, settings: RegistrySettings, client: SchemaRegistryClient | None = None) -> None:
        self.url = settings.url
        self._key = settings.key
        self._client = _open(settings) if client is None else client
        self._asked = 0

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        """See `SchemaRegistry.schema`."""
        self._asked += 1
        if self._asked % _CLIENT_CACHE == 0:
            self._client.clear_caches()  # type: ignore[no-untyped-call]  # the client's caches are unbounded
        found = self._ask(lambda: self._get(key))
        kind, text = found.schema_type or AVRO, self._text(found)
        if kind != AVRO:
            return RegisteredSchema(kind, text)
        referenced: dict[tuple[str, int], str] = {}
        self._follow(found, referenced)
        return RegisteredSchema(kind, text, tuple(referenced.values()))

    def close(self) -> None:
        """See `SchemaRegistry.close`."""
        self._client.close()

    def _get(self, key: SchemaKey) -> Schema:
        return self._client.get_schema(key) if isinstance(key, int) else self._client.get_schema_by_guid(key)

    def _follow(self, schema: Schema, referenced: dict[tuple[str, int], str]) -> None:
        for reference in schema.references or ():
            at = cast("tuple[str, int]", (reference.subject, reference.version))
            if at in referenced:
                continue
            if len(referenced) >= _REFERENCES_MAX:
                raise SchemaUnknown(f"it references more than {_REFERENCES_MAX} other schemas")
            found = self._ask(partial(self._client.get_version, *at, deleted=True))
            referenced[at] = self._text(found.schema)
            self._follow(found.schema, referenced)

    def _text(self, schema: Schema) -> str:
        if not isinstance(schema.schema_str, str):
            raise RegistryRefused(
                f"{self.url} returned an answer that is not a schema", hint=f"check {self._key}.schema.registry.url"
            )
        return schema.schema_str

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except SchemaRegistryError as error:
            raise self._answered(error) from error
        except httpx2.TransportError as error:
            raise self._not_reached(error) from error
        except OAuthTokenError as error:
            raise self._no_token(error) from error
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # an answer that is not JSON of a registry
            raise RegistryRefused(
                f"{self.url} is not a Schema Registry: {error}",
                hint=f"check {self._key}.schema.registry.url",
            ) from error

    def _answered(self, error: SchemaRegistryError) -> Exception:
        status, said = error.http_status_code, f"{error.error_message} ({error.http_status_code})"
        if status >= 500 or status in _RETRIABLE:
            return RegistryUnavailable(f"the Schema Registry at {self.url} is unavailable: {said}")
        if status == 404 and error.error_code in _NOT_FOUND:
            return SchemaUnknown(f"not found in the Schema Registry at {self.url}: {error.error_message}")
        if status in {401, 403}:
            return RegistryRefused(
                f"the Schema Registry at {self.url} refuses access: {said}",
                hint=f"check {self._key}.basic.auth.* or {self._key}.bearer.auth.*, and the user's rights to schemas",
            )
        return RegistryRefused(
            f"{self.url} is not a Schema Registry: {said}",
            hint=f"check {self._key}.schema.registry.url, including its path",
        )

    def _not_reached(self, error: httpx2.TransportError) -> KeyfoldError:
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return RegistryRefused(
                f"the certificate of the Schema Registry at {self.url} is not trusted: {text}",
                hint=f"set {self._key}.schema.registry.ssl.truststore.location to the PEM file of its authority",
            )
        return RegistryUnavailable(f"the Schema Registry at {self.url} does not answer: {text}")

    def _no_token(self, error: OAuthTokenError) -> KeyfoldError:
        if any(word in error.message for word in ("invalid_client", "unauthorized", "invalid_grant", "invalid_scope")):
            return RegistryRefused(
                f"no token for the Schema Registry at {self.url}: {error.message}",
                hint=f"check {self._key}.bearer.auth.*",
            )
        return RegistryUnavailable(f"no token for the Schema Registry at {self.url} at present: {error.message}")


def _open(settings: RegistrySettings) -> SchemaRegistryClient:
    try:
        return SchemaRegistryClient.new_client(dict(settings.client))
    except (ValueError, TypeError, OSError) as error:  # a missing or invalid file, an invalid value
        files = [str(value) for key, value in settings.client.items() if key.endswith(".location")]
        raise ConfigError(
            f"{settings.key}.schema.registry.*",
            f"the Schema Registry client refuses the configuration: {error}",
            hint=f"check that these files can be read and are PEM: {', '.join(files)}" if files else None,
        ) from error
