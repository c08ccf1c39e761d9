"""Who may ask: looked at before anything else is.

* **Host** (open listeners, which are loopback): a page in a browser of this machine can let its own host name point to
  127.0.0.1 and then talk to us as to itself. Its name is in `Host`, and is none of ours: 403.
* **Origin**: a page of another origin may send simple requests (a POST without a body restarts a connector) although it
  cannot read the answer. A foreign `Origin`, or a browser that says `cross-site`, is refused: 403. There is no CORS.
* **Token**: where `rest.token` is set, everything but health, readiness and metrics needs it: 401. Compared in
  constant time. Also taken as the password of Basic, for many of Connect's clients know nothing else; it is not asked
  for in that way, so no browser keeps it.
* **Size**: bodies end at 1 MiB: 413.
* **Just awake**: what would change something is refused for a moment after this process has slept
  (`keyfold_sink.rest.pulse`): 503.
* **Many at once**: more than `IN_FLIGHT_MAX` requests are more than threads can answer: 503. Probes pass.

A request is put into one form first: segments of its path percent-encoded alike (a connector's name may hold a slash),
no slash at the end (Connect's router does not mind one, and clients send it), HEAD answered as GET without the body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keyfold_sink.rest import errors
from keyfold_sink.rest.addresses import is_loopback
from keyfold_sink.rest.health import OPEN_PATHS
from keyfold_sink.rest.pulse import Pulse

BODY_BYTES_MAX: Final = 1024 * 1024
IN_FLIGHT_MAX: Final = 64
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """The application behind its door. `own_hosts` are names that an open listener is known by besides loopback."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        own_hosts: frozenset[str] = frozenset(),
        pulse: Pulse | None = None,
    ) -> None:
        self._app = app
        self._pulse = pulse
        self._token = None if token is None else token.encode()
        self._own_hosts = frozenset(host.lower() for host in own_hosts)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": _one_form(scope)}
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
                message = "this worker is ending; whether the request was carried out is not known"
                await errors.answer(HTTPStatus.SERVICE_UNAVAILABLE, message, headers)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged
            if begun:
                return  # answered and logged already; the framework raises it all the same
            await errors.internal_error(scope["method"], scope["path"], error)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> errors.Refused | None:
        if self._token is None and not self._is_own_host(headers.get("host")):
            return errors.Refused(
                HTTPStatus.FORBIDDEN,
                "this host name is none of this worker's; ask by 127.0.0.1 or localhost, or set "
                "`rest.advertised.host.name`",
            )
        if _is_foreign(headers):
            return errors.Refused(HTTPStatus.FORBIDDEN, "requests of other web pages are refused")
        if scope["path"] in OPEN_PATHS:
            return None
        if self._token is not None and not _has_token(headers.get("authorization", ""), self._token):
            return errors.Refused(
                HTTPStatus.UNAUTHORIZED,
                "a token is needed: Authorization: Bearer <rest.token>",
                {"WWW-Authenticate": 'Bearer realm="keyfold"'},
            )
        if scope["method"] not in _READS and self._pulse is not None and self._pulse.has_just_woken():
            return errors.Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "this worker has just come to itself after a pause: nothing that was asked meanwhile is carried out; "
                "ask again",
                {"Retry-After": "3"},
            )
        return self._too_much(headers)

    def _too_much(self, headers: dict[str, str]) -> errors.Refused | None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > BODY_BYTES_MAX:
            return _too_large()
        if self._in_flight >= IN_FLIGHT_MAX:
            return errors.Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are waiting for an answer", {"Retry-After": "5"}
            )
        return None

    def _is_own_host(self, host: str | None) -> bool:
        """Without `Host` it is no browser."""
        if host is None:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.lower() in self._own_hosts


def _without_body(send: Send) -> Send:
    """For HEAD: the answer of GET but for its body."""

    async def bare(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return bare


class _Limited:
    """A request's body, as far as it may be."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._seen_bytes += len(message.get("body", b""))
        if self._seen_bytes > BODY_BYTES_MAX:
            refusal = _too_large()
            raise HTTPException(refusal.status, refusal.message, refusal.headers)  # the one that FastAPI lets through
        return message


def _too_large() -> errors.Refused:
    # What was not read would be taken for the next request.
    headers = {"Connection": "close"}
    return errors.Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes", headers
    )


def _one_form(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    segments = [quote(unquote(segment), safe="") for segment in raw.decode("latin-1").split("/")]
    path = "/".join(segments)
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def _is_foreign(headers: dict[str, str]) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return _netloc(origin) != headers.get("host", "").lower()
    return headers.get("sec-fetch-site", "none") in {"cross-site", "same-site"}


def _netloc(origin: str) -> str | None:
    """Host and port of an origin; None where it has none (`null` has none)."""
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
