"""Objects as an attacker writes them who may put any bytes into the bucket."""

from __future__ import annotations

from unittest.mock import patch

from keyfold.log import manifest_codec
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.store.api import ObjectStore, Update


def forged(manifest: Manifest) -> bytes:
    """The bytes of a manifest that keyfold refuses to write, with a checksum that is right."""
    with patch.object(manifest_codec, "faults", lambda _: []):
        return manifest_codec.encode_manifest(manifest)


def plant(store: ObjectStore, key: str, data: bytes) -> None:
    """Put `data` in the place of an object that is there."""
    store.put(key, data, Update(store.head(key).etag))


def plant_manifest(store: ObjectStore, place: Place, manifest: Manifest) -> None:
    """Put a forged manifest in the place of the partition's."""
    plant(store, place.manifest_key, forged(manifest))
