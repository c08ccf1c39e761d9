"""The converter that a configuration names, and mistakes in its settings."""

from __future__ import annotations

import pytest

from keyfold.errors import ConfigError
from keyfold_sink.config.converter_settings import (
    AvroConverter,
    BytesConverter,
    Converter,
    JsonConverter,
    NumberConverter,
    StringConverter,
    parse_converter,
    parse_header_converter,
)
from keyfold_sink.config.registry_settings import parse_registry

URL = {"schema.registry.url": "http://registry:8081"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bytes", BytesConverter()),
        ("ByteArrayConverter", BytesConverter()),
        ("org.apache.kafka.connect.converters.ByteArrayConverter", BytesConverter()),
        ("string", StringConverter()),
        ("org.apache.kafka.connect.storage.StringConverter", StringConverter()),
        ("json", JsonConverter(schemas_enable=False)),
        ("JsonConverter", JsonConverter(schemas_enable=True)),
        ("Json", JsonConverter(schemas_enable=True)),
        ("ByteArray", BytesConverter()),
        ("org.apache.kafka.connect.json.JsonConverter", JsonConverter(schemas_enable=True)),
        (
            "org.apache.kafka.connect.converters.LongConverter",
            NumberConverter("org.apache.kafka.connect.converters.LongConverter", 8),
        ),
    ],
)
def test_short_names_and_class_names_are_known(name: str, expected: Converter) -> None:
    assert parse_converter("key.converter", name, {}) == expected


def test_schemas_enable_is_off_by_default_only_for_the_short_name() -> None:
    on, off = {"schemas.enable": "true"}, {"schemas.enable": "false"}
    assert parse_converter("k", "json", on) == JsonConverter(schemas_enable=True)
    assert parse_converter("k", "JsonConverter", off) == JsonConverter(schemas_enable=False)


@pytest.mark.parametrize("name", ["string", "bytes", "avro", "LongConverter"])
def test_schemas_enable_is_ignored_for_other_converters(name: str) -> None:
    settings = {"schemas.enable": "false", **(URL if name == "avro" else {})}
    assert parse_converter("value.converter", name, settings) == parse_converter(
        "value.converter", name, URL if name == "avro" else {}
    )


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("strin", {}, "value.converter"),
        ("io.confluent.connect.protobuf.ProtobufConverter", {}, "Protobuf"),
        ("io.confluent.connect.json.JsonSchemaConverter", {}, "JSON Schema"),
        ("string", {"converter.encoding": "ISO-8859-1"}, "value.converter.converter.encoding"),
        ("json", {"schemas.enable": "yes"}, "value.converter.schemas.enable"),
        ("json", {"schemas.enabel": "true"}, "did you mean `value.converter.schemas.enable`?"),
        ("json", {"schemas.cache.size": "0"}, "value.converter.schemas.cache.size"),
        ("json", {"decimal.format": "TEXT"}, "value.converter.decimal.format"),
        ("json", {"schema.content": "{}"}, "schemas.enable=true"),
        ("string", URL, "it is a setting of avro"),
        ("avro", {}, "value.converter.schema.registry.url"),
        ("avro", {"schema.registry.url": "registry:8081"}, "not an http or https address"),
        ("avro", {"schema.registry.url": "http://"}, "not an http or https address"),
        ("avro", {**URL, "schema.registry.basic.auth.userinfo": "a:b"}, "did you mean"),
        ("avro", {**URL, "basic.auth.credentials.source": "SASL_INHERIT"}, "USER_INFO"),
        ("avro", {**URL, "basic.auth.credentials.source": "USER_INFO"}, "basic.auth.user.info"),
        ("avro", {**URL, "basic.auth.user.info": "s3cret"}, "basic.auth.user.info"),
        ("avro", {**URL, "bearer.auth.token": "s3cret"}, "bearer.auth.credentials.source"),
        ("avro", {**URL, "bearer.auth.credentials.source": "STATIC_TOKEN"}, "bearer.auth.token"),
        ("avro", {**URL, "bearer.auth.credentials.source": "CUSTOM"}, "STATIC_TOKEN or OAUTHBEARER"),
        ("avro", {**URL, "schema.registry.ssl.truststore.location": "/a/b.jks"}, "PEM"),
        ("avro", {**URL, "schema.registry.ssl.keystore.type": "PKCS12"}, "PEM"),
        ("avro", {**URL, "schema.registry.ssl.key.location": "/k.pem"}, "ssl.certificate.location"),
        ("avro", {**URL, "schema.registry.ssl.endpoint.identification.algorithm": ""}, "must be https"),
        ("avro", {**URL, "http.read.timeout.ms": "soon"}, "http.read.timeout.ms"),
        ("avro", {**URL, "request.header.x": "1"}, "unknown setting"),
    ],
)
def test_mistakes_name_their_key_and_show_no_secret(name: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_converter("value.converter", name, settings)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_settings_of_the_registrys_client_reach_it() -> None:
    settings = parse_registry(
        "value.converter",
        {
            "schema.registry.url": "https://a:8081, https://b:8081",
            "schema.registry.basic.auth.credentials.source": "USER_INFO",
            "schema.registry.basic.auth.user.info": "user:s3cret",
            "schema.registry.ssl.truststore.location": "/ca.pem",
            "schema.registry.ssl.truststore.type": "PEM",
            "schema.registry.ssl.keystore.location": "/me.pem",
            "schema.registry.ssl.key.password": "s3cret",
            "schema.registry.http.read.timeout.ms": "5000",
            "schemas.cache.size": "77",
            "auto.register.schemas": "false",
            "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        },
    )
    assert settings.client == {
        "url": "https://a:8081,https://b:8081",
        "basic.auth.user.info": "user:s3cret",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.password": "s3cret",
        "timeout": 5.0,
        "max.retries": 0,
    }
    assert settings.cache_size == 77
    assert "s3cret" not in repr(settings)


def test_credentials_in_the_address_are_not_shown() -> None:
    settings = parse_registry("value.converter", {"schema.registry.url": "https://user:s3cret%21@a:8081,http://b:1"})
    assert settings.url == "https://a:8081,http://b:1"
    assert "s3cret" not in repr(AvroConverter(settings))
    assert settings.client["url"] == settings.url, "requests are logged with their address"
    assert settings.client["basic.auth.user.info"] == "user:s3cret!"


def test_an_invalid_address_is_shown_without_credentials() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_registry("value.converter", {"schema.registry.url": "ftp://user:s3cret@a:8081"})
    assert "s3cret" not in str(caught.value)


def test_bearer_tokens_and_oauth_settings_are_passed_on() -> None:
    static = {**URL, "bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t"}
    assert parse_registry("v", static).client["bearer.auth.token"] == "t"
    oauth = {
        **URL,
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.client.id": "id",
        "bearer.auth.client.secret": "secret",
        "bearer.auth.scope": "all",
        "bearer.auth.issuer.endpoint.url": "https://idp/token",
        "bearer.auth.logical.cluster": "lsrc-1",
    }
    client = parse_registry("v", oauth).client
    assert client["bearer.auth.client.secret"] == "secret"
    assert client["bearer.auth.logical.cluster"] == "lsrc-1"


def test_headers_may_be_bytes_text_or_json_but_not_avro() -> None:
    for name in ("simple", "SimpleHeaderConverter", "org.apache.kafka.connect.storage.SimpleHeaderConverter", "bytes"):
        assert parse_header_converter("header.converter", name, {}) == BytesConverter()
    assert parse_header_converter("header.converter", "string", {}) == StringConverter()
    with pytest.raises(ConfigError, match="must not be avro"):
        parse_header_converter("header.converter", "avro", URL)
