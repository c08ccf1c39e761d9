"""Alerts and dashboard before Prometheus itself: its check of the rules, each alert in a world that it fires in and in
one that it does not, and its reading of every query of the dashboard.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.grafana_dashboard import PAGE
from tests.support.promtool import promtool

pytestmark = pytest.mark.real

FOLDER = Path(__file__).parents[2] / "infra" / "prometheus"
WORLDS = ("alerts_test.yaml", "alerts_hours_test.yaml")


def test_prometheus_accepts_the_rules() -> None:
    answer = promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("worlds", WORLDS)
def test_each_alert_fires_exactly_in_its_firing_cases(worlds: str) -> None:
    answer = promtool("test", "rules", worlds, folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_rule_that_never_fires_is_detected(tmp_path: Path) -> None:
    """Break an alert: the test above must report it."""
    text = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
    broken = text.replace("keyfold_compactor_partitions_held) > 0", "keyfold_compactor_partitions_held) > 1000")
    assert broken != text
    (tmp_path / "alerts.yaml").write_text(broken, encoding="utf-8")
    (tmp_path / WORLDS[1]).write_bytes((FOLDER / WORLDS[1]).read_bytes())
    answer = promtool("test", "rules", WORLDS[1], folder=tmp_path)
    assert answer.returncode != 0
    assert "KeyfoldTombstonesHeld" in answer.stdout + answer.stderr


# What Grafana puts in the place of its own variables; the dashboard's own stay, as they are values of labels.
_GRAFANAS = {"$__rate_interval": "1m", "$__range": "1h", "$__interval": "1m"}


def test_prometheus_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads(PAGE.read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > len(panels) / 2
    for ours, theirs in _GRAFANAS.items():
        queries = [query.replace(ours, theirs) for query in queries]
    rules = [{"record": f"panel:query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    answer = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(queries)} rules found" in answer.stdout
