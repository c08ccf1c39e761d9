"""`make docs`: write the tables of the metrics pages from the declared metrics, between marks. A test compares.

<!-- printed: sink-task-metrics -->
...
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from keyfold.metrics.metric import Metric
from keyfold.table import metrics as table_metrics
from keyfold_compactor.report import metric_names as compactor_names
from keyfold_replicator.status import metric_names as replica_names
from keyfold_server import metrics as server_metrics
from keyfold_sink.metrics import names
from keyfold_sink.metrics.definitions import CONNECTOR
from keyfold_sink.metrics.names import METRICS

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "metrics-sink.md"
COMPACTOR_PAGE: Final = DOCS / "metrics.md"
REPLICA_PAGE: Final = DOCS / "metrics-replica.md"
SERVE_PAGE: Final = DOCS / "serve.md"
TABLE_PAGE: Final = DOCS / "table.md"
PAGES: Final = (PAGE, COMPACTOR_PAGE, REPLICA_PAGE, TABLE_PAGE, SERVE_PAGE)
COMMAND: Final = "make docs"

_PRINTED: Final = re.compile(r"(<!-- printed: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
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
        found.setdefault(metric.equivalent.split(" ")[0] if metric.equivalent else own, []).append(metric)
    return dict(found)


def table(metrics: Sequence[Metric]) -> str:
    """One table, with a column for Connect's name where they have one."""
    connect = any(metric.equivalent for metric in metrics)
    heads = ["metric", *(["Connect"] if connect else []), "kind", "labels", "what it says", "when it rises"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for metric in metrics:
        labels = ", ".join(
            filter(
                None,
                ["`connector`" if metric.subject == CONNECTOR else "", *(f"`{label}`" for label in metric.own_labels)],
            )
        )
        bean = [f"`{metric.equivalent.partition(' ')[2]}`"] if connect else []
        lines.append(_row([f"`{metric.name}`", *bean, metric.kind, labels or "-", metric.help, metric.rises]))
    return "\n".join(lines) + "\n"


def compactor_table() -> str:
    """Return the table of the compactor's metrics, with the attribute of Kafka's cleaner."""
    return _named_table("Kafka", compactor_names.METRICS, lambda m: m.equivalent.rpartition("name=")[2], ())


def replica_table() -> str:
    """Return the table of the replicator's metrics, with the field of MapR; all metrics have the label `replica`."""
    return _named_table("MapR", replica_names.METRICS, lambda m: replica_names.MAPR_NAMES.get(m, ""), ("replica",))


def _named_table(head: str, metrics: Sequence[Metric], name: Callable[[Metric], str], common: Sequence[str]) -> str:
    heads = ["metric", head, "labels", "meaning", "when it rises"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels if label not in common)
        other = f"`{name(metric)}`" if name(metric) else "-"
        lines.append(_row([f"`{metric.name}`", other, labels or "-", metric.help, metric.rises]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page(text: str) -> str:
    """Return the page with its tables as they must be. Raise `KeyError` for an unknown table."""
    tables = {name: table(metrics) for name, metrics in sections().items()}
    tables |= {"compactor": compactor_table(), "replica": replica_table()}
    tables |= {"table": table(table_metrics.METRICS), "serve": table(server_metrics.METRICS)}
    return _PRINTED.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n{found[3]}", text)


def printed(text: str) -> list[str]:
    """The names of the tables in a page."""
    return [found[2] for found in _PRINTED.finditer(text)]


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page(each.read_text(encoding="utf-8")), encoding="utf-8")
