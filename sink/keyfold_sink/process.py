"""What a task's process asks of its allocators, once, before anything large is imported.

A budget for memory is only worth what the process really takes. Two allocators keep far more than is in use: Arrow's
own pool beside Python's, and glibc with an arena for each of a dozen threads. At 300 partitions with `buffer.memory`
of 64 MiB they were 50 MiB over it together (tests/bench/bench_sink_memory.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from typing import Final

# Python looks for reference cycles after every 700 new objects. A batch is ten thousand and more, none of them in a
# cycle, and they are gone after it: the looking cost a third of the hot loop (measured). What does make cycles, answers
# of the store, still comes to this many soon enough.
_COLLECT_AFTER_OBJECTS: Final = 50_000

# glibc learns from each large block that is freed to take the next from its heap, up to 32 MiB, and a heap in which
# blocks of 20 MB have been is full of holes: four such records left 130 MiB behind (measured). So it learns nothing,
# and what is this large goes back at once.
_MALLOC_OPTIONS: Final = {
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 16 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": (-1, 32 * 1024 * 1024),
}


def tune_process() -> None:
    """Meant for a process that does nothing else. What the operator set in the environment stays."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow reads it when it is first imported
    if sys.platform == "linux":
        mallopt = getattr(_libc(), "mallopt", None)  # glibc's; musl has none, and no arenas either
        for name, (option, value) in _MALLOC_OPTIONS.items():
            if mallopt is not None and name not in os.environ:
                mallopt(option, value)
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)


def collect_litter() -> None:
    """Let go of young reference cycles, and give back what is free. Meant for once a second: some milliseconds.

    Each answer of the store leaves some kilobytes in cycles (botocore makes two parsers a request: 9,600 of each were
    seen at once), which was tens of megabytes with thousands of small segments before Python looked for them. And glibc
    gives back only the end of its heap by itself: after 4,300 segments of 2,000 partitions 67 MiB of 118 were holes
    between what lived on.
    """
    gc.collect(0)
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
