"""The shared broker of a test run ends after its last user, and not before."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from keyfold.errors import KeyfoldError
from keyfold_demo.broker import KafkaBroker
from tests.support.shared_broker import SharedBroker, keep


@dataclass(slots=True)
class Pretended:
    """The part of a broker that its keeper uses."""

    port: int
    folder: Path
    is_over: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.is_over.set()


@dataclass(slots=True)
class RunningBroker:
    broker: Pretended
    folder: Path
    keeper: threading.Thread

    def ended(self) -> bool:
        self.keeper.join(60)
        return not self.keeper.is_alive() and self.broker.is_over.is_set()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBroker]:
    broker = Pretended(1, tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / "broker.port").write_text(str(listener.getsockname()[1]))
        keeper = threading.Thread(target=keep, args=(cast("KafkaBroker", broker), listener))
        keeper.start()
        yield RunningBroker(broker, tmp_path, keeper)
        keeper.join(60)


def test_users_share_one_broker_and_the_last_one_ends_it(running: RunningBroker) -> None:
    with SharedBroker(running.folder) as one:
        with SharedBroker(running.folder) as two:
            assert (one.port, one.folder) == (two.port, two.folder) == (1, running.broker.folder)
        assert not running.broker.is_over.is_set()
        with SharedBroker(running.folder):
            pass
        assert not running.broker.is_over.is_set()
    assert running.broker.is_over.is_set()
    assert running.ended()


def test_a_dead_user_does_not_count(running: RunningBroker) -> None:
    with socket.create_connection(("127.0.0.1", int((running.folder / "broker.port").read_text()))) as line:
        assert line.recv(1) == b"{"
        assert not running.broker.is_over.is_set()
    assert running.ended()


def test_the_pid_of_a_shared_broker_is_not_available(running: RunningBroker) -> None:
    with SharedBroker(running.folder) as shared, pytest.raises(KeyfoldError, match="private_broker"):
        _ = shared.pid


def test_an_unused_broker_ends(tmp_path: Path) -> None:
    broker = Pretended(1, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        keep(cast("KafkaBroker", broker), listener, first_user_timeout_s=0.01)
    assert broker.is_over.is_set()
