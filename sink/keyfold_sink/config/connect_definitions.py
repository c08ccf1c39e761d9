"""The sink's options for Connect's user interfaces: `ConfigKeyInfo` and `ConfigInfos` of Connect's REST API.

Pure functions of the table of options. No answer contains a secret: passwords are `[hidden]` as in Connect,
placeholders stay as they are written, and messages went through `without_secrets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from keyfold.config.config_file import shown
from keyfold.config.option_fields import Entry, Kind, entries
from keyfold.config.option_table import OptionTable, option_table
from keyfold.errors import ConfigError
from keyfold.runtime.json_types import JsonObject
from keyfold_sink.config.aliases import rewrite
from keyfold_sink.config.examine import ConfigFindings, examine, examine_request
from keyfold_sink.config.options import SinkOptions

CONNECTOR_CLASS: Final = "keyfold_sink.KeyfoldSinkConnector"
GROUPS: Final = ("Common", "Kafka", "Store", "Log", "Converters", "Error Handling", "Tasks", "REST", "Metrics")

_WIDTHS: Final[Mapping[Kind, str]] = {
    "BOOLEAN": "SHORT",
    "INT": "SHORT",
    "LONG": "SHORT",
    "DOUBLE": "SHORT",
    "LIST": "LONG",
    "CLASS": "LONG",
}


class ConnectDefinitions:
    """Definitions and checks of configurations for `keyfold_sink.rest`; `running` is this worker's configuration."""

    def __init__(self, running: SinkOptions) -> None:
        self._running = running

    def config_keys(self) -> list[JsonObject]:
        """Return the definition of each key."""
        return definitions()

    def validate(self, config: Mapping[str, str]) -> JsonObject:
        """Return `ConfigInfos` of a configuration that came over REST. It may be invalid in any way."""
        return infos(examine_request(config, self._running))


def definitions() -> list[JsonObject]:
    """Return the definition of each key, by group and in the order of their declaration."""
    return [_definition(entry, order) for entry, order in _ordered()]


def validate(values: Mapping[str, str], environ: Mapping[str, str]) -> JsonObject:
    """Return Connect's answer about a configuration: each key with its definition, value and errors."""
    return infos(examine(values, environ))


def infos(findings: ConfigFindings) -> JsonObject:
    """Return findings in Connect's form. As in Connect, wrong keys without a definition come first."""
    errors: dict[str, list[str]] = {}
    for mistake in findings.mistakes:
        errors.setdefault(mistake.key, []).append(_words(mistake))
    given = rewrite(findings.written).values
    table = option_table(SinkOptions)
    configs: list[JsonObject] = [
        {"definition": None, "value": _value(key, findings.written.get(key), table, [], found)}
        for key, found in errors.items()
        if key not in table.entries
    ]
    for entry, order in _ordered():
        value = given.get(entry.key, entry.default)
        found = errors.get(entry.key, [])
        configs.append(
            {
                "definition": _definition(entry, order),
                "value": _value(entry.key, value, table, entry.recommended, found),
            }
        )
    return {
        "name": findings.written.get("connector.class", CONNECTOR_CLASS),
        "error_count": sum(map(len, errors.values())),
        "groups": list(GROUPS),
        "configs": configs,
    }


def _ordered() -> Iterator[tuple[Entry, int]]:
    """Yield the keys with their position in their group, by group. Prefixes have no definition, as in Connect."""
    found = [entry for entry in entries(SinkOptions) if not entry.is_prefix]
    for group in GROUPS:
        for order, entry in enumerate((entry for entry in found if entry.group == group), 1):
            yield entry, order


def _definition(entry: Entry, order: int) -> JsonObject:
    return {
        "name": entry.key,
        "type": entry.kind,
        "required": entry.is_required,
        "default_value": entry.default,
        "importance": entry.importance.upper(),
        "documentation": entry.doc,
        "group": entry.group,
        "width": _WIDTHS.get(entry.kind, "MEDIUM"),
        "display_name": entry.display,
        "dependents": [key for key in entry.dependents if not key.endswith("*")],
        "order": order,
    }


def _value(key: str, value: str | None, table: OptionTable, recommended: list[str], errors: list[str]) -> JsonObject:
    return {
        "name": key,
        "value": None if value is None else shown(value, is_secret=table.hides(key)),
        "recommended_values": recommended,
        "errors": errors,
        "visible": True,
    }


def _words(mistake: ConfigError) -> str:
    return str(mistake)
