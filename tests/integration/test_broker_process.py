"""A test broker leaves nothing behind, whichever process dies first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keyfold.errors import KeyfoldError
from tests.support.kafka import KafkaBroker
from tests.support.proof import wait_for
from tests.support.shared_broker import SharedBroker

pytestmark = pytest.mark.kafka

STARTER = """
import sys, time
from pathlib import Path
from keyfold_demo.broker import KafkaBroker
with KafkaBroker(folder=Path(sys.argv[1])) as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


USER = """
import sys, time
from pathlib import Path
from tests.support.shared_broker import SharedBroker
with SharedBroker(Path(sys.argv[1])) as broker:
    print(broker.port, flush=True)
    time.sleep(600)
"""
ROOT = Path(__file__).parents[2]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody waits for is not running.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.full
def test_workers_of_a_run_share_a_broker_that_ends_with_the_last_worker(
    tmp_path: Path,
) -> None:
    starter = subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert starter.stdout is not None
    port = int(starter.stdout.readline())
    with SharedBroker(tmp_path) as broker:
        starter.kill()
        starter.wait()
        starter.stdout.close()
        assert broker.port == port
        broker.create_topic("users")
        folder = broker.folder
    assert not folder.exists(), "the last user has waited for its end"
    with pytest.raises(KeyfoldError, match="not running"):
        _ = broker.admin


@pytest.mark.full
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="only where the kernel watches the parent")
def test_a_broker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert is_running(pid)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    wait_for(lambda: not is_running(pid), 60, "the broker ends")


@pytest.mark.full
def test_a_wrong_setting_fails_with_the_brokers_message_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(KeyfoldError, match=r"log\.cleaner\.backoff\.ms"):
        KafkaBroker(settings={"log.cleaner.backoff.ms": "soon"}, folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_stopped_broker_leaves_neither_process_nor_files(tmp_path: Path) -> None:
    broker = KafkaBroker(folder=tmp_path)
    with broker:
        pid = broker.pid
    assert not is_running(pid)
    assert list(tmp_path.iterdir()) == []
    broker.stop()
    with pytest.raises(KeyfoldError, match="not running"):
        _ = broker.admin
