"""`/connector-plugins`: what can be configured, key by key, and whether a configuration is right.

There is one connector class. It answers to its own name, short or long, with or without `Connector` at the end, and to
whatever `connector.class` says in the configuration that runs: a client that validates before it writes asks by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query

from keyfold.config_file import has_placeholder
from keyfold_sink.config.connect_definitions import CONNECTOR_CLASS
from keyfold_sink.rest import errors, shapes
from keyfold_sink.rest.backend import JSON_BODY, Backend, Behind
from keyfold_sink.rest.connectors import texts

router = APIRouter(prefix="/connector-plugins", tags=["plugins"])

_CONVERTERS: Final = (
    "org.apache.kafka.connect.converters.ByteArrayConverter",
    "org.apache.kafka.connect.storage.StringConverter",
    "org.apache.kafka.connect.json.JsonConverter",
    "io.confluent.connect.avro.AvroConverter",
)
_SUFFIX: Final = "Connector"


async def _known_plugin(
    behind: Behind,
    plugin: Annotated[str, Path(description="The class, or its last part, with or without `Connector`.")],
) -> str:
    name = unquote(plugin)
    if not any(_is_named(name, known) for known in _classes(behind)):
        raise errors.not_found(f"Unknown plugin {name}; there is {CONNECTOR_CLASS}")
    return name


Plugin = Annotated[str, Depends(_known_plugin)]


def _classes(behind: Backend) -> tuple[str, ...]:
    configured = behind.service.options.connector_class
    return (CONNECTOR_CLASS,) if configured is None else (CONNECTOR_CLASS, configured)


def _is_named(name: str, known: str) -> bool:
    """Connect's aliases: a.b.FooConnector, FooConnector, Foo."""
    return name != "" and name in {known, known.rpartition(".")[2], known.rpartition(".")[2].removesuffix(_SUFFIX)}


@router.get("", operation_id="listPlugins")
def list_plugins(
    connectors_only: Annotated[bool, Query(alias="connectorsOnly", description="false: converters, too.")] = True,  # noqa: FBT002
) -> list[shapes.Plugin]:
    """The connector class of this worker, and on request the converters."""
    found = [(CONNECTOR_CLASS, "sink")]
    if not connectors_only:
        found += [(name, "converter") for name in _CONVERTERS]
    number = version("keyfold")
    return [shapes.Plugin.model_validate({"class": name, "type": kind, "version": number}) for name, kind in found]


@router.get("/{plugin}/config", operation_id="getPluginConfig")
def get_plugin_config(behind: Behind, _plugin: Plugin) -> list[shapes.ConfigKey]:
    """Every key of the configuration: type, default, importance, documentation."""
    return [shapes.ConfigKey.model_validate(key) for key in behind.definitions.config_keys()]


@router.put("/{plugin}/config/validate", dependencies=[JSON_BODY], operation_id="validateConfig")
def validate_config(behind: Behind, plugin: Plugin, config: shapes.Values) -> shapes.ConfigInfos:
    """Check a configuration without running it: each key's definition, value and errors.

    No file, address or variable that the configuration names is looked at. Keys of the Kafka clients (`sasl.*`,
    `ssl.*`, `security.protocol`, `*.override.*`), of the converters and of the store are checked by name and type
    alone. Placeholders and `[hidden]` count as what they stand for only while all of these keys are those of the
    configuration that runs; otherwise the keys that hold them are checked by name alone.
    """
    values = texts({key: value for key, value in config.items() if value is not None})
    _require_no_foreign_placeholders(behind, values)
    included = values.get("connector.class")
    if included is not None and not _is_named(plugin, included) and not _is_named(included, CONNECTOR_CLASS):
        raise errors.bad_request(f"Included connector type {included} does not match request type {plugin}")
    return shapes.ConfigInfos.model_validate(behind.definitions.validate(values))


def _require_no_foreign_placeholders(behind: Backend, values: Mapping[str, str]) -> None:
    """Refuse placeholders that do not run already: an answer would tell which files and variables exist."""
    known = behind.service.options.shown()
    for key, value in values.items():
        if has_placeholder(value) and known.get(key) != value:
            raise errors.bad_request(
                f"`{key}` has a placeholder that is not in the running configuration; REST does not look it up. "
                "Run `keyfold sink validate` where the files and variables are"
            )
