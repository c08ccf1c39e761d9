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
from typing import Final

# Python looks for reference cycles after every 700 new objects. A batch is ten thousand and more, none of them in a
# cycle, and they are gone after it: the looking cost a third of the hot loop (measured). What does make cycles, answers
# of the store, still comes to this many soon enough.
_COLLECT_AFTER_OBJECTS: Final = 50_000

_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2


def tune_process() -> None:
    """Meant for a process that does nothing else. What the operator set in the environment stays."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow reads it when it is first imported
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; musl has none, and no arenas either
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _ARENAS)
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
