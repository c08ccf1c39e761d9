"""Translate the registry settings of Connect's AvroConverter into those of the client used here.

Keys are Confluent's. Keys of the registry's client may have the prefix `schema.registry.` or not, as in Connect.
Certificates are PEM files: the client does not support Java key stores. Settings that only change how Connect converts
a record have no effect on whether the record decodes. They are accepted and ignored, so that users can keep their
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final
from urllib.parse import unquote, urlsplit

from keyfold.errors import ConfigError

_PREFIX: Final = "schema.registry."
_DEFAULT_TIMEOUT_S: Final = 30.0
_CACHE_SIZE: Final = 1000

_URL: Final = "schema.registry.url"
_BASIC_SOURCE: Final = "basic.auth.credentials.source"
_BASIC: Final = "basic.auth.user.info"
_BEARER_SOURCE: Final = "bearer.auth.credentials.source"
_TIMEOUTS: Final = ("http.connect.timeout.ms", "http.read.timeout.ms")

# Key of the sink -> key of the client. A PEM key store contains certificate and key.
_FILES: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.ca.location": "ssl.ca.location",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.certificate.location": "ssl.certificate.location",
    "ssl.key.location": "ssl.key.location",
    "ssl.key.password": "ssl.key.password",
}
_BEARER: Final = {
    "STATIC_TOKEN": ("bearer.auth.token",),
    "OAUTHBEARER": (
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.scope",
        "bearer.auth.issuer.endpoint.url",
    ),
}
_BEARER_OPTIONAL: Final = ("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id")

_IGNORED: Final = frozenset(
    {
        "allow.optional.map.keys",
        "auto.register.schemas",
        "avro.reflection.allow.null",
        "avro.remove.java.properties",
        "avro.use.logical.type.converters",
        "connect.meta.data",
        "discard.type.doc.default",
        "enhanced.avro.schema.support",
        "flatten.singleton.unions",
        "flatten.unions",
        "generalized.sum.type.support",
        "id.compatibility.strict",
        "ignore.default.for.nullables",
        "key.subject.name.strategy",
        "latest.cache.size",
        "latest.cache.ttl.sec",
        "latest.compatibility.strict",
        "normalize.schemas",
        "schemas.cache.config",
        "schemas.enable",
        "scrub.invalid.names",
        "use.latest.version",
        "value.subject.name.strategy",
        "ssl.endpoint.identification.algorithm",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
AVRO_KEYS: Final = frozenset(
    {
        _URL,
        _BASIC_SOURCE,
        _BASIC,
        _BEARER_SOURCE,
        "proxy.host",
        "proxy.port",
        "schemas.cache.size",
        "ssl.truststore.type",
        "ssl.keystore.type",
        *_TIMEOUTS,
        *_FILES,
        *(key for keys in _BEARER.values() for key in keys),
        *_BEARER_OPTIONAL,
        *_IGNORED,
    }
)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A registry. `client` configures `SchemaRegistryClient`, and is never shown, as it may contain secrets.

    `key` is the converter's key in the configuration, for messages. `cache_size` limits the number of cached schemas.
    """

    key: str
    url: str
    client: Mapping[str, object] = field(repr=False)
    cache_size: int = _CACHE_SIZE


def parse_registry(key: str, settings: Mapping[str, str]) -> RegistrySettings:
    """Parse the registry settings of the converter at `key` (value.converter). Raise `ConfigError`."""
    found = {_short(own): value for own, value in settings.items()}
    for own in settings:
        if _short(own) not in AVRO_KEYS:
            near = get_close_matches(_short(own), AVRO_KEYS, n=1)
            hint = f"did you mean `{key}.{near[0]}`?" if near else None
            raise ConfigError(f"{key}.{own}", "unknown setting of the avro converter", hint=hint)
    reader = _Reader(key, found)
    url = reader.url()
    # Without the credentials that it may contain: the client logs its requests with their URL.
    client: dict[str, object] = {"url": _without_user(url), "max.retries": 0, "timeout": reader.timeout_s()}
    reader.basic_auth(client, url)
    reader.bearer_auth(client)
    reader.files(client)
    if "proxy.host" in found:
        client["proxy"] = f"http://{found['proxy.host']}:{found.get('proxy.port', '80')}"
    return RegistrySettings(key, _without_user(url), client, reader.number("schemas.cache.size", _CACHE_SIZE))


class _Reader:
    """Read the settings of one converter, and report mistakes."""

    def __init__(self, key: str, found: Mapping[str, str]) -> None:
        self._key = key
        self._found = found

    def url(self) -> str:
        url = self._found.get(_URL, "").strip()
        if not url:
            raise self._wrong(
                _URL, "required: the address of the Schema Registry", hint="write https://host:8081, or several"
            )
        for one in url.split(","):
            parts = urlsplit(one.strip())
            if parts.scheme not in {"http", "https", "mock"} or not parts.netloc:
                raise self._wrong(_URL, f"{_without_user(one.strip())!r} is not an http or https address")
        return url

    def timeout_s(self) -> float:
        given = [self.number(own, 1) for own in _TIMEOUTS if own in self._found]
        return max(given) / 1000 if given else _DEFAULT_TIMEOUT_S

    def number(self, own: str, default: int) -> int:
        text = self._found.get(own, str(default)).strip()
        if not text.isdecimal() or int(text) < 1:
            raise self._wrong(own, f"must be a number of at least 1, not {text!r}")
        return int(text)

    def basic_auth(self, client: dict[str, object], url: str) -> None:
        source = self._found.get(_BASIC_SOURCE, "USER_INFO" if _BASIC in self._found else "URL")
        parts = urlsplit(url.split(",", maxsplit=1)[0].strip())
        if source not in {"URL", "USER_INFO"}:
            raise self._wrong(
                _BASIC_SOURCE,
                f"must be URL or USER_INFO, not {source!r}",
                hint="the Kafka client's SASL credentials are not passed on; set them as USER_INFO",
            )
        if source == "USER_INFO":
            if ":" not in self._found.get(_BASIC, ""):
                raise self._wrong(_BASIC, "must be <user>:<password> if the credentials' source is USER_INFO")
            client[_BASIC] = self._found[_BASIC]
        elif parts.username is not None:
            client[_BASIC] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"

    def bearer_auth(self, client: dict[str, object]) -> None:
        source = self._found.get(_BEARER_SOURCE)
        if source is None:
            for own in self._found:
                if own.startswith("bearer."):
                    raise self._wrong(own, f"requires `{self._key}.{_BEARER_SOURCE}`")
            return
        if source not in _BEARER:
            raise self._wrong(_BEARER_SOURCE, f"must be STATIC_TOKEN or OAUTHBEARER, not {source!r}")
        client[_BEARER_SOURCE] = source
        for own in _BEARER[source]:
            if not self._found.get(own):
                raise self._wrong(own, f"required with {_BEARER_SOURCE}={source}")
            client[own] = self._found[own]
        client["bearer.auth.logical.cluster"] = self._found.get("bearer.auth.logical.cluster", "")
        if "bearer.auth.identity.pool.id" in self._found:
            client["bearer.auth.identity.pool.id"] = self._found["bearer.auth.identity.pool.id"]

    def files(self, client: dict[str, object]) -> None:
        for own in ("ssl.truststore.type", "ssl.keystore.type"):
            if self._found.get(own, "PEM").upper() != "PEM":
                raise self._wrong(
                    own,
                    f"must be PEM, not {self._found[own]!r}; Java key stores are not supported",
                    hint="convert JKS to PKCS12 with `keytool -importkeystore`, and that to PEM with "
                    "`openssl pkcs12 -nodes -in`",
                )
        for own in ("ssl.truststore.location", "ssl.keystore.location"):
            if self._found.get(own, "").lower().endswith((".jks", ".p12", ".pfx")):
                raise self._wrong(own, "must be a PEM file; Java key stores are not supported")
        if self._found.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
            raise self._wrong(
                "ssl.endpoint.identification.algorithm", "must be https, because the registry's name is always verified"
            )
        for own, theirs in _FILES.items():
            if self._found.get(own):
                client[theirs] = self._found[own]
        if "ssl.certificate.location" not in client and {"ssl.key.location", "ssl.key.password"} & client.keys():
            raise self._wrong("ssl.certificate.location", "required with a private key")

    def _wrong(self, own: str, message: str, *, hint: str | None = None) -> ConfigError:
        name = own if own.startswith(_PREFIX) or not own.startswith("ssl.") else _PREFIX + own
        return ConfigError(f"{self._key}.{name}", message, hint=hint)


def _short(own: str) -> str:
    return own if own == _URL else own.removeprefix(_PREFIX)


def _without_user(url: str) -> str:
    """Return the URLs without credentials, for messages."""
    shown: list[str] = []
    for one in url.split(","):
        head, at, tail = one.strip().rpartition("@")
        shown.append(f"{head.partition('://')[0]}://{tail}" if at else tail)
    return ",".join(shown)
