"""A folder of this machine as a target: files are written in a hidden folder of it, synced, and renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.export.target import CLAIM, STAGING, SUMMARY, StagedFile, check_free, is_ours, partly, require_claim
from keyfold.runtime.buffers import Bytes


class FolderTarget:
    """A `Target` in a file system. It is made where it is not there."""

    def __init__(self, folder: Path, run: str) -> None:
        self._folder = folder
        self._staging = folder / f"{STAGING}{run}"
        self._claim = ""
        self._is_new = False

    @property
    def url(self) -> str:
        """See `Target`."""
        return str(self._folder)

    def claim(self, text: str, *, overwrite: bool) -> None:
        """See `Target`."""
        try:
            self._is_new = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in self._folder.iterdir()]
            check_free(self.url, names, overwrite=overwrite)
            if overwrite:
                (self._folder / CLAIM).unlink(missing_ok=True)
            with (self._folder / CLAIM).open("x", encoding="utf-8") as file:
                file.write(text)
            self._staging.mkdir()
        except FileExistsError:
            check_free(self.url, [CLAIM], overwrite=False)
            raise
        except OSError as error:
            raise ConfigError("--to", f"`{self.url}` cannot be written: {error.strerror}") from error
        self._claim = text

    def stage(self, name: str) -> StagedFile:
        """See `Target`."""
        return FolderFile(self._staging / name, self._folder / name)

    def publish(self, files: Sequence[StagedFile], summary: str) -> None:
        """See `Target`."""
        require_claim(self.url, self._found_claim(), self._claim)
        try:
            for path in list(self._replaced()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for file in files:
                file.publish()
            last = FolderFile(self._staging / SUMMARY, self._folder / SUMMARY)
            last.write(summary.encode())
            last.close()
            _sync(self._folder)
            last.publish()
            self._staging.rmdir()
            (self._folder / CLAIM).unlink()
            _sync(self._folder)
        except OSError as error:
            raise partly(self.url, error) from error

    def _found_claim(self) -> bytes | None:
        try:
            return (self._folder / CLAIM).read_bytes()
        except OSError:
            return None

    def _replaced(self) -> Iterator[Path]:
        """What earlier exports left; the summary goes first."""
        paths = [path for path in self._folder.iterdir() if is_ours(path.name)]
        paths = [path for path in paths if path.name != CLAIM and path != self._staging]
        yield from sorted(paths, key=lambda path: (path.name != SUMMARY, path.name))

    def abandon(self) -> None:
        """See `Target`."""
        shutil.rmtree(self._staging, ignore_errors=True)
        if self._claim and self._found_claim() == self._claim.encode():
            with suppress(OSError):
                (self._folder / CLAIM).unlink()
                if self._is_new:
                    self._folder.rmdir()


class FolderFile:
    """A `StagedFile` in a hidden folder."""

    def __init__(self, hidden: Path, final: Path) -> None:
        self._hidden = hidden
        self._final = final
        self._file = hidden.open("xb")
        self.size_bytes = 0
        self._discarded = False

    @property
    def name(self) -> str:
        """See `StagedFile`."""
        return self._final.name

    @property
    def closed(self) -> bool:
        """See `StagedFile`."""
        return self._file.closed

    def write(self, data: Bytes) -> int:
        """See `StagedFile`."""
        if self._discarded:
            return memoryview(data).nbytes
        with self._named_errors():
            written = self._file.write(data)
        self.size_bytes += written
        return written

    def flush(self) -> None:
        """See `StagedFile`."""

    def close(self) -> None:
        """See `StagedFile`."""
        if not self._file.closed:
            with self._named_errors():
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KeyfoldError(f"`{self._final}` cannot be written: {error.strerror}") from error

    def publish(self) -> None:
        """See `StagedFile`."""
        self._hidden.rename(self._final)

    def discard(self) -> None:
        """See `StagedFile`."""
        self._discarded = True
        with suppress(OSError):  # what it still holds may find no room
            self._file.close()
        self._hidden.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make what was renamed in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
