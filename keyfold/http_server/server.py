"""Run an ASGI application with uvicorn in a thread of its own.

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
from collections.abc import Iterator, Sequence
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from keyfold.errors import KeyfoldError
from keyfold.http_server.errors import LOGGER
from keyfold.http_server.protocol import DeadlineProtocol, ServerLimits
from keyfold.http_server.wake_detector import WakeDetector
from keyfold.runtime.sockets import Sockets

_START_S: Final = 10.0
_GRACE_S: Final = 2
_END_S: Final = 5.0
_HEADER_BYTES_MAX: Final = 64 * 1024


class NotServing(KeyfoldError):
    """The server could not start."""


class HttpServer:
    """A server, and its thread from `start` to `stop`."""

    def __init__(self, app: ASGIApp, sockets: Sockets, detector: WakeDetector, limits: ServerLimits) -> None:
        self.addresses = sockets.addresses
        """URLs for clients, such as `http://127.0.0.1:8083`."""
        self._sockets: Sequence[socket.socket] = sockets.listening
        self._uvicorn = _Quiet(_config(app, limits), detector)
        self._thread = threading.Thread(target=self._run, name="keyfold-http", daemon=True)

    def start(self) -> None:
        """Start, and return when requests are answered. Raise `NotServing` if the server does not start."""
        self._thread.start()
        if not self._uvicorn.ready.wait(_START_S) or not self._uvicorn.started:
            raise NotServing("the HTTP server did not start", hint="see the log for the reason")

    def stop(self) -> None:
        """Stop accepting requests, answer those in flight, and end."""
        self._uvicorn.should_exit = True
        self._thread.join(_GRACE_S + _END_S)
        if self._thread.is_alive():
            structlog.get_logger(LOGGER).warning("http request still running at shutdown")

    def _run(self) -> None:
        try:
            asyncio.run(self._uvicorn.serve_on(self._sockets))
        except Exception as error:  # noqa: BLE001 - nobody catches an exception of this thread
            structlog.get_logger(LOGGER).error("http server failed", exc_info=error)
        finally:
            self._uvicorn.ready.set()


@contextlib.contextmanager
def running(
    app: ASGIApp, sockets: Sockets, detector: WakeDetector, limits: ServerLimits | None = None
) -> Iterator[HttpServer]:
    """Serve `app` on `sockets`, if there are any, until the context ends. Raise `NotServing` if that fails."""
    server = HttpServer(app, sockets, detector, limits or ServerLimits())
    if not sockets.listening:
        yield server
        return
    server.start()
    structlog.get_logger(LOGGER).info("http server listening", addresses=list(server.addresses))
    try:
        yield server
    finally:
        server.stop()


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


def _config(app: ASGIApp, limits: ServerLimits) -> uvicorn.Config:
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
