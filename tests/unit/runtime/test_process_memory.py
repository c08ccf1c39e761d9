"""Settings of the memory allocators in a task's process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# One small block in twenty lives on: what lies between them is free, and none of it is at the end of the heap.
_HOLES = """
import ctypes, os
from keyfold.runtime.process_memory import return_memory, tune_process

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

tune_process()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
blocks = [libc.malloc(8192) for _ in range(10_000)]
for block in blocks:
    ctypes.memset(block, 1, 8192)
for number, block in enumerate(blocks):
    if number % 20:
        libc.free(block)
before = resident_bytes()
return_memory()
print(before - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_free_heap_memory_is_returned_to_the_system() -> None:
    answer = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True, timeout=60)
    assert int(answer.stdout) > 40 * 1024 * 1024, "of about 74 MiB that are free"
