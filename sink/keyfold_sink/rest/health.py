"""Who answers, whether it works, and its metrics.

Liveness and readiness are answered on the server's own loop, beside whatever waits for the store, so that a probe is
answered while the store is away. Metrics have a thread of their own for the same reason.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from keyfold_sink.rest import shapes
from keyfold_sink.rest.backend import Behind

router = APIRouter(tags=["worker"])

OPEN_PATHS: Final = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""What is answered without a token."""

_NOT: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "Not now; `message` says why.", "model": shapes.Health}
}


_METRICS_TYPES: Final[dict[str, Any]] = {
    "text/plain": {"schema": {"type": "string"}},
    "application/openmetrics-text": {"schema": {"type": "string"}},
}


@router.get("/", operation_id="serverInfo")
def server_info(behind: Behind) -> shapes.ServerInfo:
    """The worker's version and Kafka's cluster id."""
    number = version("keyfold")
    return shapes.ServerInfo(version=number, commit=number, kafka_cluster_id=behind.service.cluster_id())


@router.get(
    "/health",
    response_model=shapes.Health,
    responses={500: {"description": "The worker does not work.", "model": shapes.Health}},
    operation_id="healthCheck",
)
async def health(behind: Behind) -> JSONResponse:
    """Connect's health check (KIP-1017): of the worker, whatever its tasks do."""
    if behind.service.is_alive():
        message = "Worker has completed startup and is ready to handle requests."
        return _health(HTTPStatus.OK, "healthy", message)
    message = "Worker was unable to handle this request and may be unable to handle other requests."
    return _health(HTTPStatus.INTERNAL_SERVER_ERROR, "unhealthy", message)


@router.get("/health/live", response_model=shapes.Health, responses=_NOT, operation_id="live")
async def live(behind: Behind) -> JSONResponse:
    """For a liveness probe: 503 when the worker hangs and must be started anew."""
    if behind.service.is_alive():
        return _health(HTTPStatus.OK, "alive", "the supervisor's loop goes round")
    return _health(HTTPStatus.SERVICE_UNAVAILABLE, "not alive", "the supervisor's loop does not go round")


@router.get("/health/ready", response_model=shapes.Health, responses=_NOT, operation_id="ready")
async def ready(behind: Behind) -> JSONResponse:
    """For a readiness probe: 503 while a task joins, has failed, hangs, or has stood still for a minute."""
    why = behind.service.not_ready()
    if why:
        return _health(HTTPStatus.SERVICE_UNAVAILABLE, "not ready", why)
    return _health(HTTPStatus.OK, "ready", "every task works")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": _METRICS_TYPES, "description": "In Prometheus' text format."}},
    operation_id="metrics",
)
async def metrics(behind: Behind, request: Request) -> Response:
    """Metrics of this worker and its tasks, for Prometheus; as OpenMetrics where that is what `Accept` asks for."""
    accept = request.headers.get("accept", "")
    text, content_type = await to_thread.run_sync(behind.metrics, accept, limiter=behind.metrics_turn)
    return Response(text, headers={"Content-Type": content_type})


def _health(code: HTTPStatus, status: str, message: str) -> JSONResponse:
    body = {"status": status, "message": message}
    return JSONResponse(body if code == HTTPStatus.OK else {"error_code": int(code), **body}, code)
