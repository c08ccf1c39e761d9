"""Types of bytes in memory that stores, formats and threads exchange."""

from __future__ import annotations

from collections.abc import Callable

Bytes = bytes | bytearray | memoryview
Fetch = Callable[[int, int], Bytes]
"""`fetch(start, length)` returns exactly that range of an object."""
