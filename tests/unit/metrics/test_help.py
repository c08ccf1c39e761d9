"""Each help text stands alone: somebody who sees one metric in Prometheus, and no other text, understands it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from keyfold.metrics.metric import Metric
from tests.support.served_metrics import DECLARED

_UNITS: Final = {
    "_ms": "milliseconds",
    "_seconds": "seconds",
    "_secs": "seconds",
    "_bytes": "bytes",
    "_timestamp_seconds": "Unix time in seconds",
    "_percent": "percent",
    "_percentage": "from 0 to 1",  # as in Connect
    "_ratio": "from 0 to 1",
}
"""What a text says if the metric's name ends so. A timestamp says from when it counts."""

# Words that point at a metric, a table or a page that Prometheus does not show.
_POINTERS: Final = re.compile(
    r"\b(the same|as above|above|below|see|that metric|this metric|the other|likewise|the former|the latter|it|docs)\b",
    re.IGNORECASE,
)
_SUBJECTS: Final = re.compile(
    r"\b(sink|worker|compact\w*|replica\w*|process|server|source|tombstones|partition)", re.IGNORECASE
)  # fmt: skip


def _names_its_unit(metric: Metric) -> bool:
    name = metric.name.removesuffix("_total")
    endings = sorted((ending for ending in _UNITS if name.endswith(ending)), key=len)
    return not endings or _UNITS[endings[-1]].lower() in metric.help.lower()


RULES: Final[dict[str, Callable[[Metric], bool]]] = {
    "begins with a capital letter, or with the value 1": lambda m: re.match(r"[A-Z]|1 ", m.help) is not None,
    "does not begin as the continuation of another text": lambda m: not re.match(r"(The|As|Its|And) ", m.help),
    "ends with a full stop": lambda m: m.full_help.endswith(".") and not m.help.endswith(".."),
    "has four words or more": lambda m: len(m.help.split()) >= 4,
    "points at no other text": lambda m: not _POINTERS.search(m.help),
    "names its subject": lambda m: _SUBJECTS.search(m.help) is not None,
    "names its unit": _names_its_unit,
    "is one line": lambda m: "\n" not in m.full_help and "  " not in m.full_help,
}


def test_every_help_text_stands_alone() -> None:
    offenders = [
        f"{metric.name}: {rule}: {metric.help}"
        for metric in DECLARED
        for rule, holds in RULES.items()
        if not holds(metric)
    ]
    assert offenders == []


def test_no_two_metrics_have_one_help_text() -> None:
    texts: dict[str, str] = {}
    twins = [(texts[m.help], m.name) for m in DECLARED if texts.setdefault(m.help, m.name) != m.name]
    assert twins == []


def test_a_text_that_does_not_stand_alone_is_found() -> None:
    bad = {
        "Records.": "has four words or more",
        "records that the sink task has read.": "begins with a capital letter, or with the value 1",
        "As above, for the sink task.": "does not begin as the continuation of another text",
        "Records that the sink task has read": "ends with a full stop",
        "Records of the sink, the same per second.": "points at no other text",
        "Records that were read from Kafka.": "names its subject",
        "Time that the sink task was paused.": "names its unit",
    }
    for text, rule in bad.items():
        assert not RULES[rule](Metric("keyfold_sink_paused_seconds_total", "counter", text, "-")), text
