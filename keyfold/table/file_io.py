"""The files of a table in an object store, as pyiceberg and pyarrow read and write them.

    ObjectFiles    pyiceberg's `FileIO` on an `ObjectStore`: whole objects, created and never replaced
    ObjectReader   one object as a seekable file, read by ranges: what a Parquet reader needs

Locations are URLs of the store, because Iceberg's metadata names files by whole URLs.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import ManifestEntry

from keyfold.errors import ConfigError, KeyfoldError, ObjectNotFound
from keyfold.log.objects import create_object
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore

METADATA_BYTES_MAX: Final = 1 << 30
"""The largest manifest or metadata file that is read."""


class TableMoved(KeyfoldError):
    """The table has changed since it was loaded: another commit came first, or a file is gone.

    Nothing was committed; load the table and try again.
    """

    retriable = True


def gone(error: ObjectNotFound) -> TableMoved:
    """Return the error for a missing file of a table that was loaded before."""
    return TableMoved(
        f"`{error.key}` is missing, and the table named it when it was loaded",
        hint="if it happens again, rebuild the table with --rebuild",
    )


class ObjectFiles(FileIO):
    """Files of one bucket. `manifest_entries` are those of the version that was read last, by manifest."""

    def __init__(self, store: ObjectStore, retry: RetryPolicy) -> None:
        super().__init__()
        self.store = store
        self.retry = retry
        self.manifest_entries: Mapping[str, tuple[ManifestEntry, ...]] = {}

    def key(self, location: str) -> str:
        """Return the key of a location. Raises `ConfigError` if it is in another bucket."""
        scheme, _, rest = location.partition("://")
        bucket, _, key = rest.partition("/")
        if self.store.url.partition("://")[2] != bucket or not key or scheme not in _schemes(self.store.url):
            raise ConfigError("--to", f"the table names `{location}`, which is not in `{self.store.url}`")
        return key

    def new_input(self, location: str) -> InputFile:
        """See `FileIO`."""
        return _Input(self, location)

    def new_output(self, location: str) -> OutputFile:
        """See `FileIO`."""
        return _Output(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """See `FileIO`."""
        self.store.delete(self.key(location if isinstance(location, str) else location.location))

    def create(self, location: str, data: bytes) -> None:
        """Create a file. Raises the errors of `create_object`."""
        create_object(self.store, self.key(location), data, self.retry)


def _schemes(url: str) -> frozenset[str]:
    scheme = url.partition("://")[0]
    return frozenset({scheme, "s3a", "s3n"}) if scheme == "s3" else frozenset({scheme})


class _Input(InputFile):
    def __init__(self, files: ObjectFiles, location: str) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.store.head(self._files.key(self.location)).size_bytes

    def exists(self) -> bool:
        """See `InputFile`."""
        try:
            self._files.store.head(self._files.key(self.location))
        except ObjectNotFound:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - the signature of the base
        """See `InputFile`. Metadata is small, and read whole."""
        try:
            return io.BytesIO(self._files.store.get(self._files.key(self.location), METADATA_BYTES_MAX).data)
        except ObjectNotFound as error:
            raise gone(error) from error


class _Output(OutputFile):
    def __init__(self, files: ObjectFiles, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def exists(self) -> bool:
        """See `OutputFile`."""
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        """See `OutputFile`."""
        return _Input(self._files, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002 - the signature of the base
        """See `OutputFile`. The object is created when the stream is closed without an error, and never replaced."""
        return _OutputBuffer(self)

    def finish(self, data: bytes) -> None:
        """Create the object."""
        self._files.create(self.location, data)
        self._size_bytes = len(data)


class _OutputBuffer(io.BytesIO):
    def __init__(self, file: _Output) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._file.finish(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().close()


class ObjectReader(io.RawIOBase):
    """One object as a file of `size_bytes`, read by ranges. For one thread."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """See `io.RawIOBase`. Raises the store's errors."""
        left = self._size_bytes - self._at
        length = left if size < 0 else min(size, left)
        if length <= 0:
            return b""
        try:
            data = self._store.get_range(self._key, self._at, length)
        except ObjectNotFound as error:
            raise gone(error) from error
        self._at += length
        return data
