"""`make docs`: the tables of docs/metrics-sink.md are printed from the code, between marks; a test compares.

<!-- printed: sink-task-metrics -->
...
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from keyfold_sink.metrics import names
from keyfold_sink.metrics.metric import Metric, Scope
from keyfold_sink.metrics.names import METRICS

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics-sink.md"
COMMAND: Final = "make docs"

_PRINTED: Final = re.compile(r"(<!-- printed: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SCOPES: Final = {Scope.TASK: "", Scope.PARTITION: "", Scope.CONNECTOR: "`connector`", Scope.WORKER: ""}
_FIRST_OF_OWN: Final = (
    ("progress", names.LAG),
    ("store", names.REQUESTS),
    ("memory", names.BUFFERED),
    ("claims", names.CLAIMS),
    ("process", names.REPLACED),
    ("partitions", names.PARTITION_LAG),
)


def sections() -> dict[str, Sequence[Metric]]:
    """What each table shows: a bean of Connect's, or a part of the sink's own."""
    found: dict[str, list[Metric]] = {}
    own = ""
    starts = {metric: title for title, metric in _FIRST_OF_OWN}
    for metric in METRICS:
        own = starts.get(metric, own)
        found.setdefault(metric.connect.split(" ")[0] if metric.connect else own, []).append(metric)
    return dict(found)


def table(metrics: Sequence[Metric]) -> str:
    """One table, with a column for Connect's name where they have one."""
    connect = any(metric.connect for metric in metrics)
    heads = ["metric", *(["Connect"] if connect else []), "kind", "labels", "what it says", "when it rises"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for metric in metrics:
        labels = ", ".join(filter(None, [_SCOPES[metric.scope], *(f"`{label}`" for label in metric.own_labels)]))
        bean = [f"`{metric.connect.partition(' ')[2]}`"] if connect else []
        lines.append(_row([f"`{metric.name}`", *bean, metric.kind, labels or "-", metric.help, metric.rises]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page(text: str) -> str:
    """The page with its tables as they must be. Raises `KeyError` for a table that there is not."""
    tables = sections()
    return _PRINTED.sub(lambda found: f"{found[1]}\n{table(tables[found[2]])}\n{found[3]}", text)


def printed(text: str) -> list[str]:
    """The names of the tables in a page."""
    return [found[2] for found in _PRINTED.finditer(text)]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
