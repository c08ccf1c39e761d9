"""The objects that endpoints use, and the FastAPI dependencies that provide them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol
from urllib.parse import unquote

from anyio import CapacityLimiter
from fastapi import Depends, Path, Request

from keyfold.http_server import errors
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject
from keyfold_sink.control import SinkControl

Metrics = Callable[[str], tuple[bytes, str]]
"""Return the metrics text and its content type for a request's `Accept` header."""


class ConfigDefinitions(Protocol):
    """The sink's configuration as Connect's JSON objects (`ConfigKeyInfo`, `ConfigInfos`)."""

    def config_keys(self) -> list[JsonObject]:
        """Return the definition of every key."""

    def validate(self, config: Mapping[str, str]) -> JsonObject:
        """Return `name`, `error_count`, `groups` and `configs` for any configuration, without its secrets."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Everything that endpoints build their responses from."""

    service: SinkControl
    definitions: ConfigDefinitions
    metrics: Metrics
    clock: Clock
    levels_set_ms: dict[str, int] = field(default_factory=dict)
    metrics_turn: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    @property
    def name(self) -> str:
        """The connector's name."""
        return self.service.options.name


# Dependencies are coroutines: a plain function would wait for a thread, behind requests that wait for the store.
async def _backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


Behind = Annotated[Backend, Depends(_backend)]


async def _known_connector(
    behind: Behind,
    connector: Annotated[str, Path(description="The sink's name (`name` in its configuration).")],
) -> str:
    name = unquote(connector)
    known = behind.name
    if name != known:
        raise errors.not_found(f"Connector {name} not found; this worker runs connector {known}")
    return name


Connector = Annotated[str, Depends(_known_connector)]
