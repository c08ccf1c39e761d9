"""A store that something happens to under its readers."""

from __future__ import annotations

from collections.abc import Callable

from keyfold.store.api import Blob
from keyfold.store.memory import MemoryStore


class MeddlingStore(MemoryStore):
    """Calls `meddle` before each read of a segment or an index, though not recursively."""

    meddle: Callable[[], None] | None = None

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self._meddle(key)
        return super().get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._meddle(key)
        return super().get_range(key, start, length)

    def _meddle(self, key: str) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None and not key.endswith("_manifest.avro") and "_restores/" not in key:
            meddle()
        self.meddle = meddle
