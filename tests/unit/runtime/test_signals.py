"""A signal sets the stop event, whatever the main thread is doing with that event."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyfold.runtime.signals import stop_or_end_on_signals

_IN_A_PROCESS = textwrap.dedent(
    """
    import signal, sys, threading
    from keyfold.runtime.signals import stop_on_signals

    def again(number):
        print("again", signal.Signals(number).name)

    stop = stop_on_signals((signal.SIGTERM, signal.SIGINT), again)
    assert threading.active_count() == 1  # no thread waits for a signal that may never come
    if sys.argv[1] == "in its lock":
        with stop._cond:  # as `Event.wait` holds it when it begins and when it ends
            signal.raise_signal(signal.SIGTERM)
    else:
        signal.raise_signal(signal.SIGTERM)
    assert stop.wait(60)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    """
)


@pytest.mark.parametrize("when", ["in its lock", "outside of it"])
def test_a_signal_sets_the_event_and_its_repetition_is_reported(when: str) -> None:
    """A handler that set the event itself would deadlock, and the process would take no further signal."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_PROCESS, when], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["again", "SIGTERM"]


def test_a_second_signal_of_the_same_kind_ends_the_process() -> None:
    """A signal of another kind does not end the process, as a supervisor may send two kinds together."""
    code = (
        "import signal\n"
        "from keyfold.runtime.signals import stop_or_end_on_signals\n"
        "stop = stop_or_end_on_signals()\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "assert stop.wait(60)\n"
        "print('stopping', flush=True)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('not ended', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout.split() == ["stopping"]


def test_no_handler_is_installed_outside_the_main_thread() -> None:
    """A notebook runs code in another thread, where Python refuses signal handlers."""
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(stop_or_end_on_signals).result(60)
    assert not stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before
