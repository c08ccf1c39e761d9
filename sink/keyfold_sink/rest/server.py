"""Build the ASGI application, and run uvicorn in a thread of its own, from `serve` to the end of its context.

    with listening(options) as sockets:                      # sockets
        service = ...(worker_id=worker_id(options, sockets))
        with serve(service, sockets, metrics=..., definitions=..., clock=clock) as server:
            ...                                              # the supervisor's loop; REST never waits for it

The server installs no signal handlers; the main program has its own. Shutdown is quick: requests in flight have
`GRACE_S`, then their connections are closed. A request that waits for the store on a thread cannot be cancelled. Its
thread ends with the store's time-out, and does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold_sink.control import SinkControl
from keyfold_sink.rest import connectors, document, errors, health, loggers, offsets, plugins
from keyfold_sink.rest.backend import Backend, ConfigDefinitions, Metrics
from keyfold_sink.rest.guard import Guard
from keyfold_sink.rest.protocol import DeadlineProtocol, RestLimits
from keyfold_sink.rest.sockets import Sockets
from keyfold_sink.rest.wake_detector import WakeDetector

_START_S: Final = 10.0
_GRACE_S: Final = 2
_END_S: Final = 5.0
_HEADER_BYTES_MAX: Final = 64 * 1024


class NotServing(KeyfoldError):
    """The REST API could not start."""


class RestServer:
    """The running REST API."""

    def __init__(self, app: ASGIApp, sockets: Sockets, detector: WakeDetector, limits: RestLimits) -> None:
        self.addresses = sockets.addresses
        """URLs of the API, such as `http://127.0.0.1:8083`; empty if the API is off."""
        self._sockets: Sequence[socket.socket] = sockets.listening
        self._uvicorn = _Quiet(_config(app, limits), detector)
        self._thread = threading.Thread(target=self._run, name="keyfold-rest", daemon=True)

    def start(self) -> None:
        """Start, and return when requests are answered. Raise `NotServing` if the server does not start."""
        self._thread.start()
        if not self._uvicorn.ready.wait(_START_S) or not self._uvicorn.started:
            raise NotServing("the REST API did not start", hint="see the log for the reason")

    def stop(self) -> None:
        """Stop accepting requests, answer those in flight, and end."""
        self._uvicorn.should_exit = True
        self._thread.join(_GRACE_S + _END_S)
        if self._thread.is_alive():
            structlog.get_logger("keyfold.sink.rest").warning("rest request still running at shutdown")

    def _run(self) -> None:
        try:
            asyncio.run(self._uvicorn.serve_on(self._sockets))
        except Exception as error:  # noqa: BLE001 - nobody catches an exception of this thread
            structlog.get_logger("keyfold.sink.rest").error("rest API failed", exc_info=error)
        finally:
            self._uvicorn.ready.set()


class _Quiet(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    def __init__(self, config: uvicorn.Config, detector: WakeDetector) -> None:
        super().__init__(config)
        self._detector = detector
        self.ready = threading.Event()

    async def serve_on(self, sockets: Sequence[socket.socket]) -> None:
        await self._serve(list(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._detector.start(asyncio.get_running_loop())
        await super().startup(sockets)
        self.ready.set()


def _config(app: ASGIApp, limits: RestLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=functools.partial(DeadlineProtocol, limits),  # type: ignore[arg-type]  # uvicorn only calls it
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # uvicorn warns about everything that a port scanner sends
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
    )


@contextlib.contextmanager
def serve(
    service: SinkControl,
    sockets: Sockets,
    *,
    metrics: Metrics,
    definitions: ConfigDefinitions,
    clock: Clock,
    limits: RestLimits | None = None,
) -> Iterator[RestServer]:
    """Serve the REST API on `sockets`, if there are any, until the context ends. Raise `NotServing` if it fails."""
    options = service.options
    token = None if options.rest_token is None else options.rest_token.get_secret_value()
    host = options.rest_advertised_host_name
    backend = Backend(service=service, definitions=definitions, metrics=metrics, clock=clock)
    detector = WakeDetector(clock)
    app = make_app(backend, token=token, own_hosts=() if host is None else (host,), detector=detector)
    server = RestServer(app, sockets, detector, limits or RestLimits())
    if not sockets.listening:
        yield server
        return
    server.start()
    structlog.get_logger("keyfold.sink.rest").info("rest API listening", addresses=list(server.addresses))
    try:
        yield server
    finally:
        server.stop()


def make_app(
    backend: Backend, *, token: str | None, own_hosts: Iterable[str] = (), detector: WakeDetector | None = None
) -> ASGIApp:
    """Build the REST API of one sink. Without a token, `Host` must be loopback or one of `own_hosts`."""
    api = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)  # FastAPI's pages load scripts from a CDN
    api.state.backend = backend
    errors.install(api)
    document.install(api, needs_token=token is not None)
    for endpoints in (connectors, offsets, plugins, loggers, health):
        api.include_router(endpoints.router)
    return Guard(api, token=token, own_hosts=frozenset(own_hosts), detector=detector)
