"""`make docs`: infra/grafana/keyfold.json is printed from infra/grafana/panels.yaml; a test compares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parents[2] / "infra" / "grafana"
SOURCE: Final = FOLDER / "panels.yaml"
PAGE: Final = FOLDER / "keyfold.json"
COMMAND: Final = "make docs"

COLUMNS: Final = 24
_JOBS: Final = ".*keyfold.*"
_SELECTION: Final = 'namespace=~"$namespace", job=~"$job"'
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: queries by their legends. `unit` is Grafana's name of it."""

    title: str
    text: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 0
    alarm_at: float | None = None
    stacked: bool = False

    @property
    def columns(self) -> int:
        """Of `COLUMNS`."""
        return self.width or (4 if self.kind == "stat" else 8)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the dashboard, and the panels below it."""

    title: str
    panels: Sequence[Panel]


def rows() -> list[Row]:
    """What the description says. Raises `TypeError` for a word that there is not."""
    described = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return [Row(row["row"], [Panel(**panel) for panel in row["panels"]]) for row in described]


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana imports it."""
    return {
        "uid": "keyfold",
        "title": "keyfold",
        "description": "Sink, compactor and replicas. What to do is in docs/operations/README.md.",
        "tags": ["keyfold"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": list(_laid_out(rows())),
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
        _variable("namespace", "Namespace", f'label_values(up{{job=~"{_JOBS}"}}, namespace)', ".*"),
        _variable("job", "Job", f'label_values(up{{job=~"{_JOBS}", namespace=~"$namespace"}}, job)', _JOBS),
        _variable(
            "topic",
            "Topic",
            f'label_values({{__name__=~"keyfold_(sink|compactor|replica)_partition_.+", {_SELECTION}}}, topic)',
            ".*",
        ),
    ]


def _variable(name: str, label: str, query: str, all_values: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": all_values,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _laid_out(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """From left to right, then down."""
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            number += 1
            if left + panel.columns > COLUMNS:
                top, left, height = top + height, 0, 0
            tall = 4 if panel.kind == "stat" else 8
            yield _panel(panel, number, {"h": tall, "w": panel.columns, "x": left, "y": top})
            left, height = left + panel.columns, max(height, tall)
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm_at is not None:
        steps.append({"color": "red", "value": panel.alarm_at})
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": {},
    }
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 30 if panel.stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.alarm_at is not None else "off"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [_target(panel, *query, chr(ord("A") + at)) for at, query in enumerate(panel.queries.items())],
    }


def _target(panel: Panel, legend: str, query: str, name: str) -> dict[str, Any]:
    target = {
        "refId": name,
        "datasource": _DATASOURCE,
        "expr": query.replace("{@t", f'{{{_SELECTION}, topic=~"$topic"').replace("{@", f"{{{_SELECTION}"),
        "legendFormat": legend,
        "range": panel.kind != "table",
        "instant": panel.kind == "table",
    }
    return {**target, "format": "table"} if panel.kind == "table" else target


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
