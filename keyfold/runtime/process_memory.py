"""Memory of a process that moves records: its allocators, and how often Python looks for reference cycles.

Allocators are set once, before anything large is imported. Two of them keep far more memory than is in use: Arrow's own
pool beside Python's, and glibc with an arena for each of a dozen threads. Because of them a sink of 300 partitions
exceeded its `buffer.memory` of 64 MiB by 50 MiB (tests/bench/bench_sink_memory.py). A pass took 770 MiB in two Python
workers of Spark, and takes 600 with these settings (tests/bench/bench_compactor.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

ALLOCATOR_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({"ARROW_DEFAULT_MEMORY_POOL": "system"})
"""Environment variables for a process whose first import of Arrow comes before `tune_process` (a worker of Spark)."""

# By default Python searches for reference cycles after every 700 new objects. A batch or a block's ranges make ten
# thousand objects or more, none of them in a cycle, and all are freed soon; the search took a third of the time of the
# sink's hot loop, and a thirtieth of a pass' (measured). The store's responses, which do make cycles, reach this number
# soon enough.
_COLLECT_AFTER_OBJECTS: Final = 50_000

# Whenever a large block is freed, glibc raises its threshold, up to 32 MiB, and takes later blocks from its heap.
# Large blocks fragment the heap: four records of 20 MB left 130 MiB behind. With a fixed threshold, blocks of this size
# are returned to the system at once. It is below the parts of an upload, which have 8 MiB (`keyfold.log.objects`): in
# the heap, they took 15 MiB more of a sink with a `buffer.memory` of 64 MiB, and no less CPU. With a threshold of 1 MiB
# the sink took 5 to 15 % more CPU (measured).
_MALLOC_OPTIONS: Final = {
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 6 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": (-1, 32 * 1024 * 1024),
}


def tune_process() -> None:
    """Tune a process that moves records, for its whole life. Settings in the environment take precedence."""
    for name, pool in ALLOCATOR_ENVIRONMENT.items():  # Arrow reads them when it is first imported
        os.environ.setdefault(name, pool)
    if sys.platform == "linux":
        mallopt = getattr(_libc(), "mallopt", None)  # glibc only; musl has neither `mallopt` nor arenas
        for name, (option, value) in _MALLOC_OPTIONS.items():
            if mallopt is not None and name not in os.environ:
                mallopt(option, value)
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)


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
