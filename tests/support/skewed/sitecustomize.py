"""Another time of day for a Python process and its children; Python runs this file when it starts.

It is found by `PYTHONPATH`, and does nothing without `KEYFOLD_TEST_CLOCK`: a file with the seconds by which `time.time`
and `time.time_ns` are off, which may change while the process runs (see `tests.support.clocks.SkewedProcesses`).
`time.monotonic`, the C library (librdkafka) and `datetime` (which boto3 signs with) are left alone.
"""

import os
import time

_FILE = os.environ.get("KEYFOLD_TEST_CLOCK", "")
_time, _time_ns = time.time, time.time_ns


def _offset_s() -> int:
    with open(_FILE, encoding="ascii") as file:  # noqa: PTH123 - pathlib itself would be another import at each start
        return int(file.read() or 0)


if _FILE:
    time.time = lambda: _time() + _offset_s()
    time.time_ns = lambda: _time_ns() + _offset_s() * 1_000_000_000
