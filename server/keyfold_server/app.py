"""The ASGI application: endpoints and pages, what counts their answers, and the guard around them."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keyfold.errors import KeyfoldError, LogNotFound, TopicNotFound
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.http_server import errors
from keyfold.http_server.guard import Guard
from keyfold.http_server.protocol import ServerLimits
from keyfold.read.key_directory import RecordsTooLarge
from keyfold.read.lookup import KeyInSeveralPartitions
from keyfold.runtime.clock import Clock
from keyfold.runtime.listeners import SettingNames
from keyfold_server import health, keys, pages
from keyfold_server.keys import ServerBackend
from keyfold_server.metrics import ServerMeter

NAMES: Final = SettingNames("--listen", "--token-file", "--host-name")

CLIENTS_MAX: Final = 2000
"""Requests that wait or are answered at the same time. Each takes up to a body, and the value that it asks for."""
THREADS: Final = 16
"""Requests that are worked on at the same time; the others wait."""
CONNECTIONS: Final = THREADS * pages.READERS
LIMITS: Final = ServerLimits(request_s=60.0, connections_max=2 * CLIENTS_MAX, peer_connections_max=2 * CLIENTS_MAX)

_STATUSES: Final[dict[type[KeyfoldError], HTTPStatus]] = {
    TopicNotFound: HTTPStatus.NOT_FOUND,
    LogNotFound: HTTPStatus.NOT_FOUND,
    KeyInSeveralPartitions: HTTPStatus.CONFLICT,
    RecordFormatMismatch: HTTPStatus.UNPROCESSABLE_ENTITY,
    RecordsTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}
_SAFE: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))


def make_app(
    backend: ServerBackend,
    clock: Clock,
    *,
    token: str | None,
    own_hosts: Iterable[str] = (),
) -> ASGIApp:
    """Build the application. Without a token, `Host` must be loopback or one of `own_hosts`."""
    api = FastAPI(title="keyfold serve", docs_url=None, redoc_url=None, redirect_slashes=False)
    api.state.backend = backend
    api.state.clock = clock
    api.state.meter = meter = ServerMeter(lambda: backend.lookups.topic_count, lambda: backend.lookups.memory_bytes)
    api.state.metrics_turn = CapacityLimiter(1)
    errors.install(api, _STATUSES)
    for endpoints in (keys, health, pages):
        api.include_router(endpoints.router)
    guarded = Guard(
        api, token=token, names=NAMES, own_hosts=frozenset(own_hosts), has_pages=True, in_flight_max=CLIENTS_MAX
    )
    return _Counted(guarded, meter, clock)


class _Counted:
    """ASGI middleware that counts answers, refusals too, and lets no browser guess that a value is a page."""

    def __init__(self, app: ASGIApp, meter: ServerMeter, clock: Clock) -> None:
        self._app = app
        self._meter = meter
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        to_thread.current_default_thread_limiter().total_tokens = THREADS  # that of this event loop
        begun_s, status = self._clock.monotonic_s(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_SAFE]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._meter.count(route, status or 500, self._clock.monotonic_s() - begun_s)
