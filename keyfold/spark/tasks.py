"""A store that goes to Spark's tasks: as a location, a value that opens the same store in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from keyfold.errors import ConfigError
from keyfold.store.api import ObjectStore, StoreLocation


def location_of(store: ObjectStore) -> StoreLocation:
    """Return what a task opens to get the same store. Raise `ConfigError` if only this process has the store."""
    location: object = getattr(store, "location", store)
    if not hasattr(location, "open"):
        raise ConfigError("store", f"{store.url} cannot be opened by Spark's tasks", hint="use an S3 store")
    return cast("StoreLocation", location)


@contextmanager
def opened(location: StoreLocation) -> Iterator[ObjectStore]:
    """Open a store, and close it at the end."""
    store = location.open()
    try:
        yield store
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            close()
