"""A store in memory that keeps versions of its objects, as a bucket with versioning does."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.errors import ObjectNotFound
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Blob, ObjectVersion, PutMode, PutResult
from keyfold.store.memory import MemoryStore


class VersionedMemory(MemoryStore):
    """`MemoryStore` and `VersionedStore`."""

    def __init__(self) -> None:
        super().__init__(content_etags=True)
        self._versions: dict[str, list[tuple[ObjectVersion, Blob | None]]] = {}

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        result = super().put(key, data, mode)
        self._keep(key, self.get(key))
        return result

    def delete(self, key: str) -> None:
        super().delete(key)
        self._keep(key, None)

    def _keep(self, key: str, blob: Blob | None) -> None:
        kept = self._versions.setdefault(key, [])
        size_bytes = 0 if blob is None else len(blob.data)
        version = ObjectVersion(key, f"v{len(kept)}", size_bytes, self._clock.now_ms(), is_deletion=blob is None)
        kept.append((version, blob))

    def list_versions(self, key: str) -> Iterator[ObjectVersion]:
        yield from [version for version, _ in reversed(self._versions.get(key, []))]

    def get_version(self, key: str, version_id: str) -> Blob:
        for version, blob in self._versions.get(key, []):
            if version.version_id == version_id and blob is not None:
                return blob
        raise ObjectNotFound(key, f"no version {version_id}")
