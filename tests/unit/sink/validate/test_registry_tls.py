"""A registry behind TLS, and one that requires a token of an identity provider."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfold.errors import ConfigError
from keyfold_sink.validate.convert.api import SchemasPending
from keyfold_sink.validate.convert.registry_api import RegistryRefused
from tests.support.avro_cases import framed
from tests.support.avro_checks import causes, opened
from tests.support.columns import batch
from tests.support.schema_registry import StubRegistry
from tests.support.secure_kafka import Certificates, make_certificates

TRUST = "schema.registry.ssl.truststore.location"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[False, True], ids=["server", "mutual"])
def registry(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[StubRegistry]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.broker)
    if request.param:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.authority)
    with StubRegistry(tls=context) as found:
        found.register("a", "int")
        yield found


def own(certificates: Certificates) -> dict[str, str]:
    return {
        TRUST: str(certificates.authority),
        "schema.registry.ssl.keystore.location": str(certificates.client),
        "schema.registry.ssl.key.location": str(certificates.client_key),
        "http.read.timeout.ms": "5000",
    }


def test_a_trusted_registry_is_used(registry: StubRegistry, certificates: Certificates) -> None:
    with opened(registry.url, more=own(certificates)) as checks:
        assert causes(checks, framed(1, "int", 1)) == []


@pytest.mark.parametrize("trust", [False, True])
def test_an_untrusted_registry_gives_a_hint(registry: StubRegistry, certificates: Certificates, trust: bool) -> None:
    more = {"http.read.timeout.ms": "5000", **({TRUST: str(certificates.other_authority)} if trust else {})}
    with opened(registry.url, more=more) as checks, pytest.raises(RegistryRefused, match=r"ssl\.truststore\.location"):
        causes(checks, framed(1, "int", 1))
    assert registry.requests == []


@pytest.mark.parametrize(
    ("name", "text"),
    [(TRUST, None), ("schema.registry.ssl.keystore.location", None), (TRUST, "no certificate")],
)
def test_a_missing_or_invalid_file_is_a_configuration_error(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_text(text)
    with (
        pytest.raises(ConfigError, match=r"value\.converter\.schema\.registry"),
        opened("https://127.0.0.1:1", more={name: str(path)}),
    ):
        pass


def oauth(registry: StubRegistry, secret: str) -> dict[str, str]:
    return {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.client.id": "me",
        "bearer.auth.client.secret": secret,
        "bearer.auth.scope": "schemas",
        "bearer.auth.issuer.endpoint.url": f"{registry.url}/token",
    }


def test_a_token_of_an_identity_provider_is_sent() -> None:
    with StubRegistry() as registry:
        registry.bearer, registry.client_secret = "t0ken", "s3cret"
        registry.register("a", "int")
        with opened(registry.url, more=oauth(registry, "s3cret")) as checks:
            assert causes(checks, framed(1, "int", 1)) == []
        assert any("scope=schemas" in request for request in registry.requests)


def test_a_client_unknown_to_the_identity_provider_is_refused() -> None:
    with StubRegistry() as registry:
        registry.bearer, registry.client_secret = "t0ken", "s3cret"
        with opened(registry.url, more=oauth(registry, "wr0ng")) as checks, pytest.raises(RegistryRefused) as caught:
            causes(checks, framed(1, "int", 1))
        assert "value.converter.bearer.auth" in str(caught.value)
        assert "wr0ng" not in str(caught.value)


def test_an_unreachable_identity_provider_is_awaited() -> None:
    with StubRegistry() as away:
        url = away.url
    with StubRegistry() as registry:
        settings = {**oauth(registry, "s"), "bearer.auth.issuer.endpoint.url": f"{url}/token"}
        with opened(registry.url, more=settings) as checks:
            with pytest.raises(SchemasPending):
                checks.judge("t", 0, batch([framed(1, "int", 1)]))
            time.sleep(0.5)
            assert checks.pending()
