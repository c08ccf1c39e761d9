"""A folder as an `ObjectStore`, for benchmarks only: no server between the measured code and the disk.

A new name is a link, which the file system refuses where there is one; updates are judged under one file lock.
Picklable, so that Spark's workers open the same folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keyfold.errors import AlreadyExists, ObjectNotFound, PreconditionFailed
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Blob, Create, ObjectInfo, PutMode, PutResult, Upload, UploadInfo, require_size
from keyfold.store.pacing import Pacer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Objects are files below `root`. An ETag is the SHA-1 of a small object's bytes."""

    root: str

    def open(self, pacer: Pacer | None = None) -> FolderStore:
        """Itself: a folder needs no connection. Benchmarks of the throttle use S3."""
        assert pacer is None
        return self

    @property
    def url(self) -> str:
        """`folder://<root>`."""
        return f"folder://{self.root}"

    def path(self, key: str) -> Path:
        """Where an object is."""
        return Path(self.root, key)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFound(key, "is not there") from None
        require_size(key, len(data), max_bytes)
        return Blob(data, _etag(data) if key.endswith("_manifest.avro") else "-", _now_ms(), _now_ms())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        with self.path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return ObjectInfo(key, self.path(key).stat().st_size, "-", _now_ms())

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        part.write_bytes(data)
        if isinstance(mode, Create):
            self.create(key, part)
        else:
            self._replace(key, part, mode.etag)
        return PutResult(_etag(data) if key.endswith("_manifest.avro") else "-", _now_ms())

    def create(self, key: str, part: Path) -> None:
        """Give a file that is whole its name, if nothing has it."""
        try:
            os.link(part, self.path(key))
        except FileExistsError:
            raise AlreadyExists(key, "the name is taken") from None
        finally:
            part.unlink()

    def _replace(self, key: str, part: Path, etag: str) -> None:
        path = self.path(key)
        with self._lock():
            if not path.exists():
                raise ObjectNotFound(key, "is gone")
            if _etag(path.read_bytes()) != etag:
                raise PreconditionFailed(key, "another version")
            part.rename(path)

    def start_upload(self, key: str) -> Upload:
        """See `ObjectStore.start_upload`."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return FolderUpload(self, key, path.with_name(f".{path.name}.{uuid.uuid4().hex}"))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        root = Path(self.root)
        below = root / prefix.rpartition("/")[0]
        keys = (str(p.relative_to(root)) for p in below.rglob("*") if p.is_file() and not p.name.startswith("."))
        for key in sorted(keys):
            if key.startswith(prefix) and key > start_after:
                yield self.head(key)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        with contextlib.suppress(FileNotFoundError):
            yield from sorted(p.name for p in self.path(prefix).iterdir() if p.is_dir())

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.path(key).unlink(missing_ok=True)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """A folder shows none."""
        del prefix
        return iter(())

    def abort_upload(self, key: str, upload_id: str) -> None:
        """A folder shows none."""

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with Path(self.root, ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True, slots=True)
class FolderUpload:
    """Parts are appended to a file without its name."""

    store: FolderStore
    key: str
    part: Path

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        with self.part.open("ab") as file:
            file.write(part)

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        self.store.create(self.key, self.part)
        return PutResult("-", _now_ms())

    def abort(self) -> None:
        """See `Upload.abort`."""
        self.part.unlink(missing_ok=True)


def _etag(data: Bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
