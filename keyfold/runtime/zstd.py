"""Python's own module for zstd: part of Python since 3.14, and a backport before.

from keyfold.runtime.zstd import zstd
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
