"""The REST API's ASGI application, and its server from `serve` to the end of its context.

with listening(options.listeners, REST) as sockets:
service = ...(worker_id=worker_id(options, sockets))
with serve(service, sockets, metrics=..., definitions=..., clock=clock) as server:
...                                              # the supervisor's loop; REST never waits for it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from keyfold.errors import KeyfoldError
from keyfold.http_server import errors
from keyfold.http_server.guard import Guard
from keyfold.http_server.protocol import ServerLimits
from keyfold.http_server.server import HttpServer, running
from keyfold.http_server.wake_detector import WakeDetector
from keyfold.runtime.clock import Clock
from keyfold.runtime.sockets import Sockets
from keyfold_sink.config.option_groups import REST
from keyfold_sink.control import NoSuchTask, NotStopped, OffsetRefused, SinkControl
from keyfold_sink.rest import connectors, document, health, loggers, offsets, plugins
from keyfold_sink.rest.backend import Backend, ConfigDefinitions, Metrics

_STATUSES: Final[dict[type[KeyfoldError], HTTPStatus]] = {
    NoSuchTask: HTTPStatus.NOT_FOUND,
    NotStopped: HTTPStatus.BAD_REQUEST,
    OffsetRefused: HTTPStatus.BAD_REQUEST,
}


@contextlib.contextmanager
def serve(
    service: SinkControl,
    sockets: Sockets,
    *,
    metrics: Metrics,
    definitions: ConfigDefinitions,
    clock: Clock,
    limits: ServerLimits | None = None,
) -> Iterator[HttpServer]:
    """Serve the REST API on `sockets`, if there are any, until the context ends. Raise `NotServing` if that fails."""
    options = service.options
    token = None if options.rest_token is None else options.rest_token.get_secret_value()
    host = options.rest_advertised_host_name
    backend = Backend(service=service, definitions=definitions, metrics=metrics, clock=clock)
    detector = WakeDetector(clock)
    app = make_app(backend, token=token, own_hosts=() if host is None else (host,), detector=detector)
    with running(app, sockets, detector, limits) as server:
        yield server


def make_app(
    backend: Backend, *, token: str | None, own_hosts: Iterable[str] = (), detector: WakeDetector | None = None
) -> ASGIApp:
    """Build the REST API of one sink. Without a token, `Host` must be loopback or one of `own_hosts`."""
    api = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)  # FastAPI's pages load scripts from a CDN
    api.state.backend = backend
    errors.install(api, _STATUSES)
    document.install(api, needs_token=token is not None)
    for endpoints in (connectors, offsets, plugins, loggers, health):
        api.include_router(endpoints.router)
    return Guard(api, token=token, names=REST, own_hosts=frozenset(own_hosts), detector=detector)
