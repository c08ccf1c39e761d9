"""versitygw: an S3 server with real, atomic conditions, built from source by Go once and kept in the cache.

The evidence that moto cannot give: checksums, credentials, and conditional writes by several processes at once. Tests
that use it carry `@pytest.mark.real`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, end, free_port
from keyfold_demo.s3_endpoint import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Endpoint
from tests.support.go_program import GoProgram

PROGRAM: Final = GoProgram("versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw")
"""90 s to build."""


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
        self._binary = PROGRAM.binary(cache)
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
            end(self._process, retry_timeout_s=5)
            self._process = None
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    @property
    def pid(self) -> int:
        """Process id of the gateway."""
        assert self._process is not None
        return self._process.pid

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
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return True
        end(self._process, retry_timeout_s=5)
        self._process = None
        return False
