"""What the endpoints stand on, and how they come by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, Protocol
from urllib.parse import unquote

from anyio import CapacityLimiter
from fastapi import Depends, Path, Request

from keyfold.clock import Clock
from keyfold_sink.rest import errors
from keyfold_sink.service import Service

Metrics = Callable[[str], tuple[bytes, str]]
"""What Prometheus scrapes and its content type, for the request's `Accept`."""


class Definitions(Protocol):
    """The sink's configuration in Connect's words (`ConfigKeyInfo`, `ConfigInfos`), as JSON will have it."""

    def config_keys(self) -> list[dict[str, Any]]:
        """Each key's definition."""

    def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        """`name`, `error_count`, `groups` and `configs` of a configuration, however wrong it is. No secret in it."""


@dataclass(frozen=True, slots=True)
class Backend:
    """All that answers are made of."""

    service: Service
    definitions: Definitions
    metrics: Metrics
    clock: Clock
    levels_set_ms: dict[str, int] = field(default_factory=dict)
    metrics_turn: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    @property
    def name(self) -> str:
        """The connector."""
        return self.service.options.name


# Dependencies are coroutines: others would wait for a thread, behind all that wait for the store.
async def _backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


Behind = Annotated[Backend, Depends(_backend)]


async def _known_connector(
    behind: Behind,
    connector: Annotated[str, Path(description="The sink's name (`name` of its configuration).")],
) -> str:
    name = unquote(connector)
    known = behind.name
    if name != known:
        raise errors.not_found(f"Connector {name} not found; the connector of this worker is {known}")
    return name


Connector = Annotated[str, Depends(_known_connector)]


async def _json_body(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise errors.Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON: Content-Type: application/json")
    try:
        json.dumps(json.loads(await request.body()), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Python's parser takes half of a surrogate pair for a character, and no answer can repeat it.
        raise errors.bad_request("the body holds half of a surrogate pair, which is no text in UTF-8") from None
    except RecursionError:
        raise errors.bad_request("the body is nested too deeply") from None
    except ValueError:
        pass  # FastAPI has its own words for what is no JSON


JSON_BODY: Final = Depends(_json_body)
"""For handlers with a body."""
