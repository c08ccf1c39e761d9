"""`keyfold serve` without sockets: its application over a store, asked by a client in the same thread."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from keyfold.runtime.clock import Clock, ManualClock
from keyfold.store.api import ObjectStore
from keyfold_server.app import make_app
from keyfold_server.keys import ServerBackend
from keyfold_server.lookups import TopicLookups

FORMATS = {"key_format": "bytes", "value_format": "bytes"}


def served(
    store: ObjectStore,
    topics_dir: str = "topics",
    *,
    clock: Clock | None = None,
    token: str | None = None,
    formats: dict[str, str] | None = None,
    **limits: Any,
) -> TestClient:
    """A client of a new server. `limits` are those of `TopicLookups`."""
    clock = clock or ManualClock()
    lookups = TopicLookups(store, topics_dir, clock, **limits)
    app = make_app(ServerBackend(lookups, FORMATS | (formats or {})), clock, token=token)
    return TestClient(app, base_url="http://127.0.0.1:8090")
