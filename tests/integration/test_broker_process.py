"""The broker's own manners: it leaves nothing behind, whoever dies first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keyfold.errors import KeyfoldError
from tests.support.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

STARTER = """
import sys, time
from pathlib import Path
from keyfold_demo.broker import KafkaBroker
with KafkaBroker(folder=Path(sys.argv[1])) as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody waits for is not running.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="only where the kernel watches the parent")
def test_a_broker_dies_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert is_running(pid)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_wrong_setting_ends_in_one_error_with_the_brokers_own_words_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(KeyfoldError, match=r"log\.cleaner\.backoff\.ms"):
        KafkaBroker(settings={"log.cleaner.backoff.ms": "soon"}, folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_broker_is_gone_with_its_files(tmp_path: Path) -> None:
    broker = KafkaBroker(folder=tmp_path)
    with broker:
        pid = broker.pid
    assert not is_running(pid)
    assert list(tmp_path.iterdir()) == []
    broker.stop()
    with pytest.raises(KeyfoldError, match="not running"):
        _ = broker.admin
