"""A process that may grow by 512 MiB, or a given bound, and no more: the parent watches it, and ends it when it does.

    with Bounded() as bounded:
        bounded.run(function, *args)      what it returned; a string where it raised an error of keyfold

The function is found by its name in its module, so it must be at the top of one; arguments and results are pickled.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from keyfold.errors import KeyfoldError
from keyfold.runtime.process_memory import return_memory

GROWTH_BYTES_MAX: Final = 512 * 1024 * 1024
NET_S: Final = 120
_PAGE_BYTES: Final = resource.getpagesize()


def _serve(calls: Connection) -> None:
    while (call := calls.recv()) is not None:
        _forget_calls()
        calls.send((*_answer(*call), _most_resident_bytes()))


def _answer(function: Callable[..., Any], args: tuple[object, ...]) -> tuple[str, Any]:
    try:
        return "returned", function(*args)
    except KeyfoldError as error:
        return "returned", f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001 - the test shall say what it was
        return "raised", f"{type(error).__name__}: {error}"[:2000]


def _forget_calls() -> None:
    """Return what earlier calls left with the allocators, and begin a new count of the highest resident size."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    return_memory()
    with suppress(OSError):  # where the kernel has no such file, the highest size of earlier calls counts too
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _most_resident_bytes() -> int:
    """Return this process's highest resident size. `ru_maxrss` would begin with that of the process it came from."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


class Bounded:
    """One such process, for one call after another. It is started again after it was ended."""

    def __init__(self, growth_bytes_max: int = GROWTH_BYTES_MAX) -> None:
        self._growth_bytes_max = growth_bytes_max
        self._context = get_context("spawn")
        self._process: Any = None
        self._calls: Any = None
        self._idle_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, function: Callable[..., Any], *args: object) -> Any:
        """What `function` returned, or the error of keyfold that it raised. Fails for any other error, and growth."""
        self._start()
        warm, _ = self._ask(_nothing, (function,))  # imports what the function needs
        assert warm == "returned"
        if not self._idle_bytes:
            self._idle_bytes = self._resident_bytes()
        kind, value = self._ask(function, args)
        assert kind == "returned", f"{function.__name__} raised {value}"
        return value

    def _ask(self, function: Callable[..., Any], args: tuple[object, ...]) -> tuple[str, Any]:
        try:
            return self._asked(function, args)
        except (EOFError, ConnectionError) as error:
            self.end()
            raise AssertionError(f"{function.__name__} ended its process") from error

    def _asked(self, function: Callable[..., Any], args: tuple[object, ...]) -> tuple[str, Any]:
        self._calls.send((function, args))
        until_s = time.monotonic() + NET_S
        while not self._calls.poll(0.01):
            grown = self._resident_bytes() - self._idle_bytes if self._idle_bytes else 0
            if grown > self._growth_bytes_max or time.monotonic() > until_s:
                self.end()
                raise AssertionError(f"{function.__name__} had grown by {grown >> 20} MiB when it was ended")
        kind, value, most_bytes = self._calls.recv()
        grown = most_bytes - self._idle_bytes if self._idle_bytes else 0
        if grown > self._growth_bytes_max:
            self.end()
            raise AssertionError(f"{function.__name__} grew by {grown >> 20} MiB")
        return kind, value

    def _resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def _start(self) -> None:
        if self._process is None:
            self._calls, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            self._idle_bytes = 0

    def end(self) -> None:
        """End the process. The next call starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._calls.close()
            self._process = None


def _nothing(_function: object) -> None:
    """Being sent is enough: to read its name is to import its module."""
