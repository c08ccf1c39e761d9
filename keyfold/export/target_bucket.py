"""A prefix of a bucket as a target: files are multipart uploads that are completed when all of them are there.

A process that is killed leaves uploads that nobody completes: the bucket's lifecycle rule for such takes them, or the
next export into the same prefix with `overwrite`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from keyfold.errors import AlreadyExists, ConfigError, ObjectNotFound, StoreError
from keyfold.export.target import CLAIM, SUMMARY, StagedFile, check_free, is_ours, partly, require_claim
from keyfold.log import catalog
from keyfold.log.names import topic_of_folder
from keyfold.log.objects import create_object, part_bytes
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore, Upload
from keyfold.store.documents import DOCUMENT_BYTES_MAX


class BucketTarget:
    """A `Target` below `prefix` (without slashes at its ends; empty: the whole bucket)."""

    def __init__(self, store: ObjectStore, prefix: str, retry: RetryPolicy) -> None:
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._retry = retry
        self._claim = ""

    @property
    def url(self) -> str:
        """See `Target`."""
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def claim(self, text: str, *, overwrite: bool) -> None:
        """See `Target`."""
        check_free(self.url, self._names(), overwrite=overwrite)
        if overwrite:
            self._store.delete(self._key(CLAIM))
        try:
            create_object(self._store, self._key(CLAIM), text.encode(), self._retry)
        except (AlreadyExists, StoreError) as error:
            if error.retriable:
                raise
            check_free(self.url, self._names(), overwrite=False)
            raise
        require_claim(self.url, self._found_claim(), text)
        self._claim = text
        if overwrite:
            for upload in list(self._store.list_uploads(self._prefix)):
                if is_ours(upload.key.removeprefix(self._prefix)):
                    self._store.abort_upload(upload.key, upload.upload_id)

    def stage(self, name: str) -> StagedFile:
        """See `Target`."""
        return BucketFile(self._store, self._key(name), name, self._retry)

    def publish(self, files: Sequence[StagedFile], summary: str) -> None:
        """See `Target`."""
        require_claim(self.url, self._found_claim(), self._claim)
        try:
            for name in list(self._replaced()):
                self._store.delete(self._key(name))
            for file in files:
                file.publish()
            create_object(self._store, self._key(SUMMARY), summary.encode(), self._retry)
            self._store.delete(self._key(CLAIM))
        except StoreError as error:
            raise partly(self.url, error) from error

    def _names(self) -> list[str]:
        """List the objects; consoles represent a folder by an object whose key is the prefix itself."""
        keys = (info.key for info in self._store.list(self._prefix))
        return [key.removeprefix(self._prefix) for key in keys if key != self._prefix]

    def _replaced(self) -> Iterator[str]:
        """What earlier exports left; the summary goes first."""
        names = [name for name in self._names() if is_ours(name) and name != CLAIM]
        yield from sorted(names, key=lambda name: (name != SUMMARY, name))

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _found_claim(self) -> bytes | None:
        try:
            return self._store.get(self._key(CLAIM), DOCUMENT_BYTES_MAX).data
        except ObjectNotFound:
            return None

    def abandon(self) -> None:
        """See `Target`."""
        with suppress(StoreError):
            if self._claim and self._found_claim() == self._claim.encode():
                self._store.delete(self._key(CLAIM))


class BucketFile:
    """A `StagedFile` in parts. It holds less than a part in memory, and nothing once it is closed."""

    def __init__(self, store: ObjectStore, key: str, name: str, retry: RetryPolicy) -> None:
        self._store = store
        self._key = key
        self._retry = retry
        self._upload: Upload | None = None
        self._held = bytearray()
        self._asked = self._discarded = False
        self.name = name
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Bytes) -> int:
        """See `StagedFile`."""
        view = memoryview(data)
        if self._discarded:
            return view.nbytes
        self._held += view
        self.size_bytes += view.nbytes
        while len(self._held) > (size := part_bytes(self.size_bytes - len(self._held))):
            self._send(size)
        return view.nbytes

    def flush(self) -> None:
        """See `StagedFile`."""

    def close(self) -> None:
        """See `StagedFile`."""
        if not self.closed and not self._discarded:
            self._send(len(self._held))
            self.closed = True

    def _send(self, size: int) -> None:
        if self._upload is None:
            self._upload = self._retry.repeat(lambda: self._store.start_upload(self._key))
        upload, part = self._upload, bytes(self._held[:size])
        self._retry.repeat(lambda: upload.write(part))
        del self._held[:size]

    def publish(self) -> None:
        """See `StagedFile`."""
        assert self._upload is not None, "a file is closed before it is published"
        self._asked = True
        try:
            self._retry.repeat(self._upload.complete)
        except StoreError as error:
            if error.retriable or not self._is_there():
                raise

    def _is_there(self) -> bool:
        """A `complete` whose answer was lost may have landed. No one else uses this name."""
        try:
            return self._retry.repeat(lambda: self._store.head(self._key)).size_bytes == self.size_bytes
        except ObjectNotFound:
            return False

    def discard(self) -> None:
        """See `StagedFile`."""
        self._discarded = self.closed = True
        self._held.clear()
        if self._upload is not None and not self._asked:
            with suppress(StoreError):
                self._upload.abort()


def check_outside_logs(source: ObjectStore, topics_dir: str, target: ObjectStore, prefix: str) -> None:
    """Raise `ConfigError` where a prefix is inside a topic's log, or where schemas and sinks have their objects."""
    base = f"{topics_dir}/" if topics_dir else ""
    if source.url != target.url or not f"{prefix}/".startswith(base) or prefix == topics_dir:
        return
    first = prefix.removeprefix(base).partition("/")[0]
    topic = topic_of_folder(first)
    if first.startswith("_") or (topic is not None and catalog.partitions(source, topics_dir, topic)):
        raise ConfigError(
            "--to",
            f"`{target.url}/{prefix}` is inside `{source.url}/{base}{first}`, which belongs to the logs",
            hint="export to a folder of its own",
        )
