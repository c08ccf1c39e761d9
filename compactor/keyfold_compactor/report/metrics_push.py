"""Push metrics to a Pushgateway, for runs that end before they can be scraped (`--once`).

The group is `job=<name>` and is replaced as a whole. Metrics must never affect a run: a failed push is only a warning.
Figures of the process (`process_...`) are not sent: the process has ended when Prometheus reads the rest, and the
Pushgateway has such figures of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Final
from urllib.request import Request, urlopen

import structlog
from prometheus_client import CollectorRegistry, push_to_gateway

from keyfold.metrics.prometheus import WithoutProcess

PUSH_TIMEOUT_S: Final = 10.0

log = structlog.get_logger(__name__)


def push(registry: CollectorRegistry, url: str, job: str) -> bool:
    """Send all metrics once; return whether they arrived. A failure is only logged."""
    try:
        push_to_gateway(url, job, WithoutProcess(registry), timeout=PUSH_TIMEOUT_S, handler=_handler)
    except (OSError, HTTPException, ValueError) as error:
        log.warning("pushing metrics failed", url=url, error=error)
        return False
    return True


def _handler(
    url: str, method: str, timeout: float | None, headers: Sequence[tuple[str, str]], data: bytes
) -> Callable[[], None]:
    """Replace prometheus_client's own handler, which leaves the response open."""

    def send() -> None:
        request = Request(url, data=data, headers=dict(headers), method=method)  # noqa: S310 - the option checks it
        with urlopen(request, timeout=timeout):  # noqa: S310 - the same
            pass

    return send
