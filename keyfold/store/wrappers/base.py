"""Wrappers around stores, which count, meter or fail calls; `inner` is the wrapped store."""

from __future__ import annotations

from keyfold.store.api import ObjectStore


def unwrapped(store: ObjectStore) -> ObjectStore:
    """Return the store inside all wrappers."""
    while (inner := getattr(store, "inner", None)) is not None:
        store = inner
    return store
