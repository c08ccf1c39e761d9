"""A fake Schema Registry over HTTP with the part of its API that readers use, which can also misbehave.

with StubRegistry() as registry:
    schema_id = registry.register("users-value", {"type": "record", ...})
    registry.answer = 503            # every request from now on; 0: as it should
    registry.hold()                  # requests hang until release()
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    registry: StubRegistry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        status, body, kind = self.server.registry.respond(urlsplit(self.path).path, self.headers.get("Authorization"))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Answer as an identity provider that issues tokens, at the same address."""
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, body, kind = self.server.registry.token(form, self.headers.get("Authorization"))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Log nothing."""


class StubRegistry:
    """Schemas by id, GUID, and subject and version."""

    def __init__(self, first_id: int = 1, tls: ssl.SSLContext | None = None) -> None:
        self.answer = 0
        self.page: bytes | None = None
        self.user_info = ""
        self.bearer = ""
        self.client_secret = ""
        self.requests: list[str] = []
        self._next_id = first_id
        self._by_id: dict[int, dict[str, Any]] = {}
        self._by_version: dict[tuple[str, int], int] = {}
        self._open = threading.Event()
        self._open.set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.registry = self
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def register(
        self,
        subject: str,
        schema: Any,
        *,
        references: Sequence[tuple[str, str, int]] = (),
        kind: str = "AVRO",
        schema_id: int | None = None,
    ) -> int:
        """Register as the next version of `subject`; a str is taken as the schema's text."""
        if schema_id is None:
            schema_id = self._next_id
            self._next_id += 1
        answer: dict[str, Any] = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema),
            "guid": str(uuid.uuid5(uuid.NAMESPACE_OID, str(schema_id))),
        }
        if kind != "AVRO":
            answer["schemaType"] = kind
        if references:
            answer["references"] = [{"name": n, "subject": s, "version": v} for n, s, v in references]
        self._by_id[schema_id] = answer
        version = 1 + max((v for s, v in self._by_version if s == subject), default=0)
        self._by_version[subject, version] = schema_id
        return schema_id

    def guid(self, schema_id: int) -> uuid.UUID:
        return uuid.UUID(self._by_id[schema_id]["guid"])

    def respond(self, path: str, authorization: str | None) -> tuple[int, bytes, str]:
        self.requests.append(path)
        self._open.wait(60)
        if self.page is not None:
            return self.answer or 200, self.page, "text/html"
        if self.answer:
            return _json(self.answer, {"error_code": self.answer, "message": f"answers {self.answer}"})
        if not self._lets_in(authorization):
            return _json(401, {"error_code": 401, "message": "Unauthorized"})
        return self._look_up([unquote(part) for part in path.strip("/").split("/")])

    def token(self, form: str, authorization: str | None) -> tuple[int, bytes, str]:
        self.requests.append(f"token {form}")
        if self.client_secret not in base64.b64decode((authorization or "").removeprefix("Basic ")).decode():
            return _json(401, {"error": "invalid_client"})
        return _json(200, {"access_token": self.bearer, "token_type": "Bearer", "expires_in": 3600})

    def _lets_in(self, authorization: str | None) -> bool:
        if self.user_info:
            return authorization == "Basic " + base64.b64encode(self.user_info.encode()).decode()
        return not self.bearer or authorization == f"Bearer {self.bearer}"

    def _look_up(self, parts: list[str]) -> tuple[int, bytes, str]:
        match parts:
            case ["schemas", "ids", number]:
                found = self._by_id.get(int(number))
                return _json(200, found) if found else _json(404, {"error_code": 40403, "message": "Schema not found"})
            case ["schemas", "guids", guid]:
                same = [known for known in self._by_id.values() if known["guid"] == guid]
                return _json(200, same[0]) if same else _json(404, {"error_code": 40403, "message": "Schema not found"})
            case ["subjects", subject, "versions", version]:
                schema_id = self._by_version.get((subject, int(version)))
                if schema_id is None:
                    return _json(404, {"error_code": 40401, "message": f"Subject '{subject}' not found."})
                names = {"subject": subject, "version": int(version), "id": schema_id}
                return _json(200, {**self._by_id[schema_id], **names})
        return _json(404, {"error_code": 404, "message": "HTTP 404 Not Found"})


def _json(status: int, body: Mapping[str, Any]) -> tuple[int, bytes, str]:
    return status, json.dumps(body).encode(), "application/vnd.schemaregistry.v1+json"
