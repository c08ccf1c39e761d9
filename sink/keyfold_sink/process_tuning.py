"""Settings of a task's memory allocators, made once, before anything large is imported.

A memory budget is only useful if the process stays near it. Two allocators keep far more memory than is in use: Arrow's
own pool beside Python's, and glibc with an arena for each of a dozen threads. At 300 partitions with a `buffer.memory`
of 64 MiB they exceeded it by 50 MiB together (tests/bench/bench_sink_memory.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from typing import Final

from keyfold.runtime.garbage import collect_rarely

# Whenever a large block is freed, glibc raises its threshold, up to 32 MiB, and takes later blocks from its heap.
# Blocks of 20 MB fragment the heap: four such records left 130 MiB behind (measured). With a fixed threshold, blocks of
# this size are returned to the system at once.
_MALLOC_OPTIONS: Final = {
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 16 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": (-1, 32 * 1024 * 1024),
}


def tune_process() -> None:
    """Tune the allocators of a process that runs a task. Settings in the environment take precedence."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow reads it when it is first imported
    if sys.platform == "linux":
        mallopt = getattr(_libc(), "mallopt", None)  # glibc only; musl has neither `mallopt` nor arenas
        for name, (option, value) in _MALLOC_OPTIONS.items():
            if mallopt is not None and name not in os.environ:
                mallopt(option, value)
    collect_rarely()


def free_cycles() -> None:
    """Free young reference cycles. Call it once a second; it takes milliseconds.

    Each response of the store leaves some kilobytes in cycles (botocore makes two parsers per request: 9,600 of each
    existed at once). With thousands of small segments that was tens of megabytes before Python searched for cycles.
    """
    gc.collect(0)


def return_memory() -> None:
    """Return free memory to the system. Call it now and then: the system gives it back page by page.

    glibc by itself returns only the end of its heap: after 4,300 segments of 2,000 partitions, 67 MiB of 118 MiB were
    free blocks between used ones. But a task that reads 100 MB/s uses all of its free memory again within a second.
    With a call every second, page faults took up to a tenth of its CPU (measured at 10 KB a record).
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
