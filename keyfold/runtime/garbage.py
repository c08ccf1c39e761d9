"""How often Python looks for reference cycles in a process that moves records."""

from __future__ import annotations

import gc
from typing import Final

# By default Python searches for reference cycles after every 700 new objects. A batch or a block's ranges make ten
# thousand objects or more, none of them in a cycle, and all are freed soon; the search took a third of the time of the
# sink's hot loop, and a thirtieth of a pass' (measured). The store's responses, which do make cycles, reach this number
# soon enough.
_COLLECT_AFTER_OBJECTS: Final = 50_000


def collect_rarely() -> None:
    """Look for cycles after tens of thousands of new objects. It holds for the whole process."""
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
