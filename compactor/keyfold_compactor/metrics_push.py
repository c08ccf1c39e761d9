"""Metrics to a Pushgateway, for runs that end before anybody could scrape them (`--once`).

The group is `job=<name>` and is replaced as a whole. Metrics are of service to a run and never the other way round: a
push that fails is a warning, and the run ends as it would have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Final
from urllib.request import Request, urlopen

import structlog
from prometheus_client import CollectorRegistry, push_to_gateway

PUSH_TIMEOUT_S: Final = 10.0

log = structlog.get_logger(__name__)


def push(registry: CollectorRegistry, url: str, job: str) -> bool:
    """Send all metrics once; whether they arrived. A failure is logged and nothing else."""
    try:
        push_to_gateway(url, job, registry, timeout=PUSH_TIMEOUT_S, handler=_handler)
    except (OSError, HTTPException, ValueError) as error:
        log.warning("pushing metrics failed", url=url, error=error)
        return False
    return True


def _handler(
    url: str, method: str, timeout: float | None, headers: Sequence[tuple[str, str]], data: bytes
) -> Callable[[], None]:
    """prometheus_client's own leaves the answer open."""

    def send() -> None:
        request = Request(url, data=data, headers=dict(headers), method=method)  # noqa: S310 - the option checks it
        with urlopen(request, timeout=timeout):  # noqa: S310 - the same
            pass

    return send
