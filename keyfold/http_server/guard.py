"""Checks of every request before a handler sees it.

* **Host** (without a token; all listeners are then loopback): a web page in a browser on this machine can point its own
  host name at 127.0.0.1 and then send requests to the server as its own origin. A `Host` that is not the server's: 403.
* **Origin**: a page of another origin may send simple requests (a POST without a body restarts a connector) although it
  cannot read the response. A foreign `Origin`, or a browser that says `cross-site`, is refused: 403. There is no CORS.
* **Token**: if there is one, every path but health, readiness and metrics requires it: 401. The comparison takes
  constant time. The token may also be the password of Basic authentication, because many clients support nothing else.
  The 401 response offers Basic only if the server `has_pages`: a browser then asks for the token, and keeps it while it
  is open. Links to such pages from other sites are followed; nothing changes by it, and the other site sees nothing.
* **Size**: a body has at most 1 MiB: 413.
* **After a suspension**: requests that change something are refused for a moment after this process was suspended
  (`keyfold.http_server.wake_detector`): 503.
* **Concurrency**: at most `in_flight_max` requests are processed at once: 503. Probes are exempt.

A request is normalised first. The segments of its path are percent-encoded alike (a connector's name may contain a
slash). A slash at the end is removed, because Connect's router accepts one and clients send it. HEAD becomes GET, whose
response is sent without the body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keyfold.http_server import errors
from keyfold.http_server.wake_detector import WakeDetector
from keyfold.runtime.listeners import SettingNames, is_loopback

OPEN_PATHS: Final = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""The paths that require no token."""

BODY_BYTES_MAX: Final = 1024 * 1024
IN_FLIGHT_MAX: Final = 64
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware with these checks. `own_hosts` are accepted in `Host` besides loopback if there is no token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        names: SettingNames,
        own_hosts: frozenset[str] = frozenset(),
        detector: WakeDetector | None = None,
        has_pages: bool = False,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._app = app
        self._names = names
        self._has_pages = has_pages
        self._challenge = 'Basic realm="keyfold"' if has_pages else 'Bearer realm="keyfold"'
        self._detector = detector
        self._token = None if token is None else token.encode()
        self._own_hosts = frozenset(host.lower() for host in own_hosts)
        self._in_flight = 0
        self._in_flight_max = in_flight_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outer, scope = scope, {**scope, "path": _one_form(scope)}
        if scope["method"] == "HEAD":
            scope["method"], send = "GET", _without_body(send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await errors.answer(refusal.status, refusal.message, refusal.headers)(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._answer(scope, _Limited(receive), send)
        finally:
            self._in_flight -= 1
            if "route" in scope:
                outer["route"] = scope["route"]  # for middleware around this one that counts requests by endpoint

    async def _answer(self, scope: Scope, receive: _Limited, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not begun:
                headers = {"Connection": "close", "Retry-After": "5"}
                message = "the server is shutting down; the request may or may not have taken effect"
                await errors.answer(HTTPStatus.SERVICE_UNAVAILABLE, message, headers)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every exception is logged and answered
            if begun:
                return  # already logged and answered; the framework raises it nevertheless
            await errors.internal_error(scope["method"], scope["path"], error)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> errors.RequestRefused | None:
        if self._token is None and not self._is_own_host(headers.get("host")):
            return errors.RequestRefused(
                HTTPStatus.FORBIDDEN,
                "the Host header is not a name of this server; use 127.0.0.1 or localhost, or set "
                f"`{self._names.own_host}`",
            )
        if _is_foreign(headers) and not (self._has_pages and _is_link(scope["method"], headers)):
            return errors.RequestRefused(HTTPStatus.FORBIDDEN, "requests from web pages of another origin are refused")
        if scope["path"] in OPEN_PATHS:
            return None
        if self._token is not None and not _has_token(headers.get("authorization", ""), self._token):
            return errors.RequestRefused(
                HTTPStatus.UNAUTHORIZED,
                f"the token is missing or wrong; send Authorization: Bearer <{self._names.token}>",
                {"WWW-Authenticate": self._challenge},
            )
        if scope["method"] not in _READS and self._detector is not None and self._detector.has_just_woken():
            return errors.RequestRefused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the server was suspended and is resuming; retry the request",
                {"Retry-After": "3"},
            )
        return self._too_much(headers)

    def _too_much(self, headers: dict[str, str]) -> errors.RequestRefused | None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > BODY_BYTES_MAX:
            return _too_large()
        if self._in_flight >= self._in_flight_max:
            return errors.RequestRefused(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are in progress; retry later", {"Retry-After": "5"}
            )
        return None

    def _is_own_host(self, host: str | None) -> bool:
        """Whether `Host` is loopback, a name of this server or missing; browsers always send it."""
        if host is None:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.lower() in self._own_hosts


def _without_body(send: Send) -> Send:
    """Return a `send` that drops the body, to answer HEAD with the response of GET."""

    async def bare(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return bare


class _Limited:
    """Receive a request's body up to the size limit."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._seen_bytes += len(message.get("body", b""))
        if self._seen_bytes > BODY_BYTES_MAX:
            refusal = _too_large()
            raise HTTPException(
                refusal.status, refusal.message, refusal.headers
            )  # the only exception that FastAPI passes on
        return message


def _too_large() -> errors.RequestRefused:
    # On a kept connection, the unread rest of the body would be parsed as the next request.
    headers = {"Connection": "close"}
    return errors.RequestRefused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body is larger than {BODY_BYTES_MAX} bytes", headers
    )


def _one_form(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    segments = [quote(unquote_to_bytes(segment), safe="") for segment in raw.split(b"/")]
    path = "/".join(segments)
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def _is_foreign(headers: dict[str, str]) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return _netloc(origin) != headers.get("host", "").lower()
    return headers.get("sec-fetch-site", "none") in {"cross-site", "same-site"}


def _is_link(method: str, headers: dict[str, str]) -> bool:
    """Whether a person follows a link or types an address: the response is a page of its own."""
    is_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return method == "GET" and is_page and "origin" not in headers


def _netloc(origin: str) -> str | None:
    """Return host and port of an origin, None if it has none (such as the origin `null`)."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return None
    return found.netloc.lower() if found.scheme in {"http", "https"} and found.netloc else None


def _has_token(authorization: str, token: bytes) -> bool:
    scheme, _, given = authorization.strip().partition(" ")
    given = given.strip()
    if scheme.lower() == "bearer":
        return hmac.compare_digest(given.encode("latin-1"), token)
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(given, validate=True).partition(b":")
        except binascii.Error:
            return False
        return hmac.compare_digest(password, token)
    return False
