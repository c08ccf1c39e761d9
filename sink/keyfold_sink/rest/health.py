"""`/`, health, liveness, readiness and metrics of this worker.

Liveness and readiness are answered on the server's event loop, while other requests wait for the store on threads. So
probes are answered while the store is unavailable. Metrics have a thread of their own for the same reason.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from keyfold_sink.rest import shapes
from keyfold_sink.rest.backend import Behind

router = APIRouter(tags=["worker"])

_NOT: Final[dict[int | str, dict[str, object]]] = {
    503: {"description": "The check failed; `message` says why.", "model": shapes.HealthReport}
}


_METRICS_TYPES: Final[dict[str, object]] = {
    "text/plain": {"schema": {"type": "string"}},
    "application/openmetrics-text": {"schema": {"type": "string"}},
}


@router.get("/", operation_id="serverInfo")
def server_info(behind: Behind) -> shapes.ServerInfo:
    """Return the worker's version and Kafka's cluster id."""
    number = version("keyfold")
    return shapes.ServerInfo(version=number, commit=number, kafka_cluster_id=behind.service.cluster_id())


@router.get(
    "/health",
    response_model=shapes.HealthReport,
    responses={500: {"description": "The worker is unhealthy.", "model": shapes.HealthReport}},
    operation_id="healthCheck",
)
async def health(behind: Behind) -> JSONResponse:
    """Check the health of the worker, but not of its tasks, as in Connect (KIP-1017)."""
    if behind.service.is_alive():
        message = "Worker has completed startup and is ready to handle requests."
        return _health(HTTPStatus.OK, "healthy", message)
    message = "Worker was unable to handle this request and may be unable to handle other requests."
    return _health(HTTPStatus.INTERNAL_SERVER_ERROR, "unhealthy", message)


@router.get("/health/live", response_model=shapes.HealthReport, responses=_NOT, operation_id="live")
async def live(behind: Behind) -> JSONResponse:
    """Check liveness: the response is 503 if the worker hangs and must be restarted."""
    if behind.service.is_alive():
        return _health(HTTPStatus.OK, "alive", "the worker's main loop runs")
    return _health(HTTPStatus.SERVICE_UNAVAILABLE, "not alive", "the worker's main loop hangs")


@router.get("/health/ready", response_model=shapes.HealthReport, responses=_NOT, operation_id="ready")
async def ready(behind: Behind) -> JSONResponse:
    """Check readiness: the response is 503 if a task is joining, has failed, hangs or has made no progress for 60 s."""
    why = behind.service.not_ready()
    if why:
        return _health(HTTPStatus.SERVICE_UNAVAILABLE, "not ready", why)
    return _health(HTTPStatus.OK, "ready", "every task works")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": _METRICS_TYPES, "description": "Metrics in Prometheus' text format."}},
    operation_id="metrics",
)
async def metrics(behind: Behind, request: Request) -> Response:
    """Return the metrics of this worker and its tasks for Prometheus, as OpenMetrics if `Accept` asks for it."""
    accept = request.headers.get("accept", "")
    text, content_type = await to_thread.run_sync(behind.metrics, accept, limiter=behind.metrics_turn)
    return Response(text, headers={"Content-Type": content_type})


def _health(code: HTTPStatus, status: str, message: str) -> JSONResponse:
    body = {"status": status, "message": message}
    return JSONResponse(body if code == HTTPStatus.OK else {"error_code": int(code), **body}, code)
