"""Stores around stores: wrappers count, meter or fail calls, and keep what they wrap in `inner`."""

from __future__ import annotations

from keyfold.store.api import ObjectStore


def unwrapped(store: ObjectStore) -> ObjectStore:
    """The store that does the work, below all wrappers."""
    while (inner := getattr(store, "inner", None)) is not None:
        store = inner
    return store
