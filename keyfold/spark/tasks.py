"""A store that goes to Spark's tasks: as a location, a value that opens the same store in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from keyfold.errors import ConfigError
from keyfold.store.api import ObjectStore


class Location(Protocol):
    """Where a store is: `S3Location` is one."""

    def open(self) -> Any:
        """A store there."""


def location_of(store: ObjectStore) -> Location:
    """What a task opens to get the same store. Raises `ConfigError` for a store of this process alone."""
    location: Any = getattr(store, "location", store)
    if not hasattr(location, "open"):
        raise ConfigError("store", f"{store.url} cannot be opened by Spark's tasks", hint="use an S3 store")
    return cast("Location", location)


@contextmanager
def opened(location: Location) -> Iterator[ObjectStore]:
    """The store, closed at the end."""
    store = location.open()
    try:
        yield store
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            close()
