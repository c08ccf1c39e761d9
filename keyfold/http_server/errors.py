"""One shape for every error, Kafka Connect's: `{"error_code": 404, "message": "Connector users not found"}`.

Every error is turned into a response here: refusals of handlers, FastAPI's validation errors, errors of the service,
and unexpected exceptions. An unexpected exception is logged with its traceback; the response does not contain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from keyfold.errors import KeyfoldError

LOGGER: Final = "keyfold.http_server"
_SHOWN_MESSAGE_CHARACTERS: Final = 4000


class RequestRefused(Exception):
    """Raised to answer a request with an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


def not_found(message: str) -> RequestRefused:
    """404."""
    return RequestRefused(HTTPStatus.NOT_FOUND, message)


def bad_request(message: str) -> RequestRefused:
    """400."""
    return RequestRefused(HTTPStatus.BAD_REQUEST, message)


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for an error. Half surrogate pairs, which a request may contain, are replaced."""
    text = message.encode("utf-8", "replace").decode()
    if len(text) > _SHOWN_MESSAGE_CHARACTERS:
        text = text[:_SHOWN_MESSAGE_CHARACTERS] + "..."
    return JSONResponse({"error_code": int(status), "message": text}, status, dict(headers or {}))


def internal_error(method: str, path: str, error: Exception) -> JSONResponse:
    """Log an unexpected exception, and return a response without its details."""
    structlog.get_logger(LOGGER).error(
        "request failed", method=method, path=path[:200], kind=type(error).__name__, exc_info=error
    )
    return answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed inside the server; see its log")


def install(app: FastAPI, statuses: Mapping[type[KeyfoldError], HTTPStatus]) -> None:
    """Install the error handlers, so that every error has the same JSON shape.

    `statuses` are those of errors that a request causes. All others are the server's.
    """
    app.state.statuses = statuses
    app.add_exception_handler(RequestRefused, _refused)
    app.add_exception_handler(KeyfoldError, _keyfold)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestRefused)
    return answer(error.status, error.message, error.headers)


async def _keyfold(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, KeyfoldError)
    for kind, status in request.app.state.statuses.items():
        if isinstance(error, kind):
            return answer(status, str(error))
    if error.retriable:
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "5"})
    structlog.get_logger(LOGGER).warning(
        "request failed", method=request.method, path=request.url.path[:200], error=error
    )
    return answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return internal_error(request.method, request.url.path, error)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return answer(HTTPStatus.BAD_REQUEST, "; ".join(map(_say, error.errors())))


def _say(problem: Mapping[str, Any]) -> str:
    """Return the place and the problem, without the value, which may be a secret."""
    if problem["type"] == "json_invalid":
        return "the request body is not valid JSON"
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}"


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return answer(HTTPStatus.NOT_FOUND, f"path {request.url.path} not found")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        message = f"method {request.method} is not allowed for {request.url.path}; allowed: {allowed}"
        return answer(HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": allowed})
    return answer(error.status_code, str(error.detail), error.headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of all routes with this path; the router knows only the first route that it tried."""
    found: set[str] = set()
    for path, operations in request.app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.scope["path"]):
            found.update(map(str.upper, operations))
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
