"""The OpenAPI document: FastAPI's description of the handlers, and the errors of the guard and the error handlers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from keyfold.http_server.guard import OPEN_PATHS
from keyfold.runtime.json_types import JsonObject

_ABOUT: Final = """Kafka Connect's REST API for the one connector that this worker runs. Additions to Connect are health
probes, *flush now*, progress by partition, and metrics. docs/rest.md describes the differences and their reasons.

Every error is `{"error_code": <HTTP status>, "message": "..."}`."""

_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_EVERYWHERE: Final = {
    "400": "The request is invalid; `message` says where.",
    "403": "`Host` is not a name of this server, or the request comes from a web page of another origin.",
    "413": "The request body is larger than 1 MiB.",
    "500": "The request failed inside the server; its log says why.",
    "503": "The store or Kafka does not answer, or too many requests are in progress. Retry the request.",
}
_NOT_FOUND: Final = "No such connector, task, plugin or logger."
_REFUSED: Final = "The configuration is a file and cannot be changed by REST; `message` says how to change it."
_REFUSING: Final = frozenset({"createConnector", "deleteConnector", "putConnectorConfig", "patchConnectorConfig"})
_NEVER: Final = frozenset({"deleteConnector", "resetOffsets"})


def install(app: FastAPI, *, needs_token: bool) -> None:
    """Make `/openapi.json` serve the complete document."""

    def document() -> JsonObject:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, needs_token=needs_token)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _document(app: FastAPI, *, needs_token: bool) -> JsonObject:
    found = get_openapi(title="keyfold sink", version=version("keyfold"), description=_ABOUT, routes=app.routes)
    schemas = found["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _error_schema()
    for path, operations in found["paths"].items():
        for operation in operations.values():
            _declare_errors(path, operation)
            if needs_token and path not in OPEN_PATHS:
                operation["responses"]["401"] = _response("The token is missing or wrong.")
                operation["security"] = [{"token": []}, {"password": []}]
    if needs_token:
        found["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "`rest.token` in the configuration."},
            "password": {"type": "http", "scheme": "basic", "description": "Any user name; the password is the token."},
        }
    return found


def _declare_errors(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # the sink answers 400, as Connect does
    if operation["operationId"] in _NEVER:
        for status in ("200", "204"):
            responses.pop(status, None)
    for status, description in _EVERYWHERE.items():
        responses.setdefault(status, _response(description))
    if "requestBody" in operation:
        responses["415"] = _response("The request's Content-Type is not JSON.")
    if "{" in path:
        responses.setdefault("404", _response(_NOT_FOUND))
    if operation["operationId"] in _REFUSING:
        responses["405"] = _response(_REFUSED)
    for status, response in responses.items():
        if int(status) >= 400:
            response.setdefault("content", _ERROR)


def _response(description: str) -> JsonObject:
    return {"description": description, "content": _ERROR}


def _error_schema() -> JsonObject:
    return {
        "type": "object",
        "title": "Error",
        "required": ["error_code", "message"],
        "properties": {
            "error_code": {"type": "integer", "description": "The HTTP status."},
            "message": {"type": "string", "description": "What is wrong, and how to fix it."},
        },
    }
