"""versitygw: an S3 server with real, atomic conditions, built from source by Go once and kept in the cache.

The evidence that moto cannot give: checksums, credentials, and conditional writes by several processes at once. Tests
that use it carry `@pytest.mark.real`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, end, free_port
from keyfold_demo.java import default_cache, locked
from keyfold_demo.s3_endpoint import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Endpoint

VERSION: Final = "v1.8.0"
_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"


def versitygw_binary(cache: Path) -> Path:
    """The binary, built if it is not there yet (about 90 s). Raises `KeyfoldError` in one line where Go is missing."""
    binary = cache / "bin" / f"versitygw-{VERSION}"
    if binary.is_file():
        return binary
    with locked(cache / "versitygw.lock"):
        if not binary.is_file():
            _build(binary)
    return binary


def _build(binary: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise KeyfoldError(
            "Go is needed to build versitygw, and there is none on PATH", hint="install Go 1.26 or newer"
        )
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".build-") as work:
        answer = subprocess.run(
            [go, "install", f"{_MODULE}@{VERSION}"],
            env={**os.environ, "GOBIN": work, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if answer.returncode != 0:
            raise KeyfoldError(f"versitygw {VERSION} could not be built:\n{answer.stderr[-2000:]}")
        (Path(work) / "versitygw").rename(binary)


class Versitygw(S3Endpoint):
    """A gateway over a temporary folder."""

    def __init__(
        self,
        cache: Path | None = None,
        *,
        folder: Path | None = None,
        keeps_versions: bool = False,
        access_key_id: str = ACCESS_KEY_ID,
        secret_access_key: str = SECRET_ACCESS_KEY,
    ) -> None:
        self._binary = versitygw_binary(cache or default_cache())
        super().__init__(0, access_key_id, secret_access_key)
        self._given_folder = folder
        self._keeps_versions = keeps_versions
        self._work: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._work = Path(tempfile.mkdtemp(prefix="keyfold-versitygw-"))
        data = self._given_folder or self._work / "data"
        data.mkdir(exist_ok=True)
        try:
            for _ in range(3):
                if self._start(data):
                    return self
            raise KeyfoldError(f"versitygw did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            end(self._process, patience_s=5)
            self._process = None
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    @property
    def _log(self) -> Path:
        assert self._work is not None
        return self._work / "versitygw.log"

    def _start(self, data: Path) -> bool:
        """One try on a fresh port; False where the process ended or stayed deaf for 20 s."""
        self.port = free_port()
        command = [
            *death_with_parent(),
            str(self._binary),
            "--port",
            f"127.0.0.1:{self.port}",
            "--quiet",
            "--keep-alive",
        ]
        backend = ["posix"]
        if self._keeps_versions:  # of buckets that ask for it
            versions = data.parent / "versions"
            versions.mkdir(exist_ok=True)
            backend += ["--versioning-dir", str(versions.absolute())]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *backend, str(data.absolute())],
                env={
                    **os.environ,
                    "ROOT_ACCESS_KEY": self.access_key_id,
                    "ROOT_SECRET_KEY": self.secret_access_key,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return True
        end(self._process, patience_s=5)
        self._process = None
        return False


def main() -> int:
    """`python -m tests.support.versitygw`: build it ahead of the tests."""
    try:
        versitygw_binary(default_cache())
    except KeyfoldError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
