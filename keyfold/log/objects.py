"""Putting an immutable object into the bucket, for certain.

A fresh name stands for one byte string, so an upload may be repeated as it is until the store has answered: a 412
means that the bytes are there. The size is compared all the same (a name that holds other bytes is a broken promise).
"""

from __future__ import annotations

from keyfold.errors import AlreadyExists, ObjectNotFound, StoreError, UploadLost
from keyfold.log.commit import Patience
from keyfold.store.api import Bytes, Create, ObjectStore


def create_object(store: ObjectStore, key: str, data: Bytes, patience: Patience) -> None:
    """Create `key` with `data`, repeating the same request while its result is unknown.

    Raises `StoreUnavailable` or `ConditionUndecided` when patience ends: the same call may be made again. Raises
    `UploadLost` when the object was there and is not any more: it needs a new name, and most likely a new claim.
    """
    try:
        patience.repeat(lambda: store.put(key, data, Create()))
    except AlreadyExists as error:
        try:
            found = patience.repeat(lambda: store.head(key))
        except ObjectNotFound:
            raise UploadLost(key, "was uploaded and is gone: the collector took it from a fenced writer") from error
        if found.size_bytes != len(data):
            raise StoreError(
                key,
                f"holds {found.size_bytes} bytes where this writer's {len(data)} bytes belong",
                hint="object names are never reused; something else writes into this folder",
            ) from error
