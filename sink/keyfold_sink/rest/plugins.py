"""`/connector-plugins`: the definitions of all configuration keys, and the validation of a configuration.

There is one connector class. Requests may name it in full or by its last part, with or without `Connector` at the end.
They may also use the `connector.class` of the running configuration, because clients validate by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query

from keyfold.config.config_file import has_placeholder
from keyfold.formats.format import FORMATS
from keyfold.http_server import errors
from keyfold.http_server.json_body import JSON_BODY
from keyfold_sink.config.connect_definitions import CONNECTOR_CLASS
from keyfold_sink.rest import shapes
from keyfold_sink.rest.backend import Backend, Behind
from keyfold_sink.rest.connectors import texts

router = APIRouter(prefix="/connector-plugins", tags=["plugins"])

_SUFFIX: Final = "Connector"


async def _known_plugin(
    behind: Behind,
    plugin: Annotated[str, Path(description="The class name or its last part, with or without `Connector`.")],
) -> str:
    name = unquote(plugin)
    if not any(_is_named(name, known) for known in _classes(behind)):
        raise errors.not_found(f"Unknown plugin {name}; the only connector plugin is {CONNECTOR_CLASS}")
    return name


Plugin = Annotated[str, Depends(_known_plugin)]


def _classes(behind: Backend) -> tuple[str, ...]:
    configured = behind.service.options.connector_class
    return (CONNECTOR_CLASS,) if configured is None else (CONNECTOR_CLASS, configured)


def _is_named(name: str, known: str) -> bool:
    """Whether the name is one of Connect's aliases of a class: a.b.FooConnector, FooConnector or Foo."""
    return name != "" and name in {known, known.rpartition(".")[2], known.rpartition(".")[2].removesuffix(_SUFFIX)}


@router.get("", operation_id="listPlugins")
def list_plugins(
    connectors_only: Annotated[bool, Query(alias="connectorsOnly", description="false: list converters too.")] = True,  # noqa: FBT002 - a parameter of a query
) -> list[shapes.Plugin]:
    """List the connector class of this worker and, on request, the converters."""
    found = [(CONNECTOR_CLASS, "sink")]
    if not connectors_only:
        found += [(info.converter_class, "converter") for info in FORMATS.values()]
    number = version("keyfold")
    return [shapes.Plugin.model_validate({"class": name, "type": kind, "version": number}) for name, kind in found]


@router.get("/{plugin}/config", operation_id="getPluginConfig")
def get_plugin_config(behind: Behind, _plugin: Plugin) -> list[shapes.ConfigKey]:
    """Return the type, default, importance and documentation of every configuration key."""
    return [shapes.ConfigKey.model_validate(key) for key in behind.definitions.config_keys()]


@router.put("/{plugin}/config/validate", dependencies=[JSON_BODY], operation_id="validateConfig")
def validate_config(behind: Behind, plugin: Plugin, config: shapes.Values) -> shapes.ConfigInfos:
    """Check a configuration without running it, and return the definition, value and errors of each key.

    The check opens no file, address or environment variable that the configuration names. Keys for the Kafka clients
    (`sasl.*`, `ssl.*`, `security.protocol`, `*.override.*`), converters and the store are checked by name and type
    only. Placeholders and `[hidden]` are replaced by their values only while all of these keys are those of the running
    configuration. Otherwise the keys that contain them are checked by name only.
    """
    values = texts({key: value for key, value in config.items() if value is not None})
    _require_no_foreign_placeholders(behind, values)
    included = values.get("connector.class")
    if included is not None and not _is_named(plugin, included) and not _is_named(included, CONNECTOR_CLASS):
        raise errors.bad_request(f"Included connector type {included} does not match request type {plugin}")
    return shapes.ConfigInfos.model_validate(behind.definitions.validate(values))


def _require_no_foreign_placeholders(behind: Backend, values: Mapping[str, str]) -> None:
    """Refuse placeholders that are not in the running configuration: a response would show which files exist."""
    known = behind.service.options.shown()
    for key, value in values.items():
        if has_placeholder(value) and known.get(key) != value:
            raise errors.bad_request(
                f"`{key}` contains a placeholder that the running configuration does not contain, and REST does not "
                "resolve it; run `keyfold sink validate` on the machine with the files and variables"
            )
