"""One broker for all workers of a test run, owned by a process that ends with the last of them.

    with SharedBroker(folder) as broker:        # `folder` is the same for all workers of the run
        broker.create_topic("users")

A broker costs five seconds of CPU to start and half a gigabyte. The first worker that asks starts a keeper, and the
keeper starts the broker. Each worker holds a connection to the keeper, which the kernel closes when the worker is
killed: users need no count, and a run that dies leaves no broker behind. The broker in turn dies with its keeper.

    worker                                  keeper
    takes the lock
    reads the port, or starts a keeper      starts the broker, and says its own port
    connects                                answers with the broker's port and folder
    ends its sending                        closes; the last worker is answered when the broker has ended

Nobody may freeze, stop or configure a shared broker. A test that has to asks for the fixture `private_broker`.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from keyfold.errors import KeyfoldError
from keyfold_demo.broker import KafkaBroker

_HOST: Final = "127.0.0.1"
_ANSWER_TIMEOUT_S: Final = 60.0
_FIRST_USER_TIMEOUT_S: Final = 60.0
_HEAP_MB: Final = 768


class SharedBroker(KafkaBroker):
    """A broker that another process started; `with` keeps it running."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._meeting = folder
        self._line: socket.socket | None = None

    @property
    def pid(self) -> int:
        """Refused: other tests use this broker at the same time."""
        raise KeyfoldError("other tests use this broker, and a signal would meet them; ask for `private_broker`")

    def start(self) -> None:
        """Find the run's broker, or start it."""
        with _locked(self._meeting / "broker.lock"):
            self._line, said = _connected(self._meeting / "broker.port")
        self.port = int(said["port"])
        self._folder = Path(said["folder"])
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})

    def stop(self) -> None:
        """Leave it; the last user waits until it has ended."""
        self._admin = self._folder = None
        line, self._line = self._line, None
        if line is not None:
            with line:
                line.shutdown(socket.SHUT_WR)
                line.settimeout(_ANSWER_TIMEOUT_S)
                line.recv(1)


def broker_of_run(folder: Path, environment: Mapping[str, str]) -> KafkaBroker:
    """The broker of a test run, not started yet; `folder` is this worker's own, in one that all workers share."""
    return SharedBroker(folder.parent) if "PYTEST_XDIST_WORKER" in environment else KafkaBroker()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _connected(path: Path) -> tuple[socket.socket, dict[str, str]]:
    """A line to the keeper that runs, or to a new one."""
    if path.exists():
        try:
            return _called(int(path.read_text()))
        except OSError:  # it has ended, or is about to
            path.unlink()
    port = _started()
    path.write_text(str(port))
    return _called(port)


def _called(port: int) -> tuple[socket.socket, dict[str, str]]:
    line = socket.create_connection((_HOST, port), timeout=_ANSWER_TIMEOUT_S)
    try:
        with line.makefile() as answers:
            said = answers.readline()
        if not said:
            raise ConnectionError("the keeper has ended")
        line.settimeout(None)
        found: dict[str, str] = json.loads(said)
    except BaseException:
        line.close()
        raise
    return line, found


def _started() -> int:
    """A new keeper's port. The keeper leaves its starter at once, because it may outlive it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.shared_broker"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
    if not said:
        raise KeyfoldError("the keeper of the tests' broker ended before it said its port; see above")
    return int(said)


def keep(broker: KafkaBroker, listener: socket.socket, first_user_timeout_s: float = _FIRST_USER_TIMEOUT_S) -> None:
    """Answer users of a broker that runs, until the last of them has gone; then stop it, and let that one go."""
    said = json.dumps({"port": str(broker.port), "folder": str(broker.folder)}).encode() + b"\n"
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        timeout_s: float | None = first_user_timeout_s
        while ready := waiting.select(timeout_s):
            for key, _ in ready:
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is listener:
                    user, _ = listener.accept()
                    user.sendall(said)
                    waiting.register(user, selectors.EVENT_READ)
                    timeout_s = None
                    continue
                waiting.unregister(line)
                if len(waiting.get_map()) == 1:  # nobody but the listener
                    listener.close()
                    broker.stop()
                    line.close()
                    return
                line.close()
        broker.stop()


def main() -> None:
    """Leave the starter, start the broker, say the port on standard output, and keep the broker."""
    if os.fork():
        os._exit(0)
    with socket.create_server((_HOST, 0)) as listener, KafkaBroker(heap_mb=_HEAP_MB) as broker:
        print(listener.getsockname()[1], flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the starter waits for its end
        keep(broker, listener)


if __name__ == "__main__":
    main()
