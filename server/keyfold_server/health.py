"""Probes and metrics. They wait for no thread that waits for the store.

The server is ready as long as it runs. A store that does not answer is an error of each request.
"""

from __future__ import annotations

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from keyfold_server.metrics import ServerMeter

router = APIRouter(tags=["server"])


class ServerHealth(BaseModel):
    """The answer to a probe."""

    status: str
    message: str


@router.get("/health", operation_id="health")
@router.get("/health/live", operation_id="live")
@router.get("/health/ready", operation_id="ready")
async def health() -> ServerHealth:
    """Say that the server answers requests."""
    return ServerHealth(status="healthy", message="the server answers requests")


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the metrics of this process for Prometheus, as OpenMetrics if `Accept` asks for it."""
    meter: ServerMeter = request.app.state.meter
    accept = request.headers.get("accept", "")
    text, content_type = await to_thread.run_sync(meter.text, accept, limiter=request.app.state.metrics_turn)
    return Response(text, headers={"Content-Type": content_type})
