"""The ASGI application: endpoints, error handlers and OpenAPI document, behind the guard."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from starlette.types import ASGIApp

from keyfold_sink.rest import connectors, document, errors, health, loggers, offsets, plugins
from keyfold_sink.rest.backend import Backend
from keyfold_sink.rest.guard import Guard
from keyfold_sink.rest.wake_detector import WakeDetector


def make_app(
    backend: Backend, *, token: str | None, own_hosts: Iterable[str] = (), pulse: WakeDetector | None = None
) -> ASGIApp:
    """Build the REST API of one sink. Without a token, `Host` must be loopback or one of `own_hosts`."""
    api = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)  # FastAPI's pages load scripts from a CDN
    api.state.backend = backend
    errors.install(api)
    document.install(api, needs_token=token is not None)
    for room in (connectors, offsets, plugins, loggers, health):
        api.include_router(room.router)
    return Guard(api, token=token, own_hosts=frozenset(own_hosts), pulse=pulse)
