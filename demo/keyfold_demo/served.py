"""HTTP servers in a thread of this process, which are silent at once when they are stopped."""

from __future__ import annotations

import contextlib
import threading
from http.server import HTTPServer
from types import TracebackType
from typing import Any, Self


class CuttingServer(HTTPServer):
    """Remembers its connections, and can cut them. To be derived from before a class that serves them in threads."""

    request_queue_size = 256

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: set[Any] = set()
        self._open_lock = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember it."""
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget it."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Cut what is still open."""
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(2)


class Served:
    """A server that listens from the start, and answers while the context is open."""

    def __init__(self, server: CuttingServer, name: str) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()
