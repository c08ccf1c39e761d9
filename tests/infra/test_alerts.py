"""The alerts use only existing metrics, labels, values and runbooks, and each has a firing and a silent case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfold.table.metrics import STEPS
from keyfold_compactor.report.metric_names import FAILURES
from keyfold_replicator.state.states import SyncState as ReplicaState
from keyfold_sink.metrics.names import REPLACED_CAUSES
from keyfold_sink.status import RunState as SinkState
from tests.support.each import each
from tests.support.promql import Matcher, names_in
from tests.support.served_metrics import SERVICES, TARGET_LABELS, all_served, served, unserved

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "prometheus"
RUNBOOKS = ROOT / "docs" / "operations" / "runbooks"
GROUPS = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
CASES = [case for path in FOLDER.glob("*_test.yaml") for case in yaml.safe_load(path.read_text("utf-8"))["tests"]]
QUERY = re.compile(r"printf `([^`]+)`")

STATES = {state.value for state in SinkState}
VALUES = {
    "kafka_connect_connector_metrics_status": {"status": {state.lower() for state in STATES}},
    "kafka_connect_connector_task_metrics_status": {"status": {state.lower() for state in STATES}},
    "keyfold_sink_partitions": {"state": STATES},
    "keyfold_sink_held_partitions": {"reason": {"memory", "schemas", "letters"}},
    "keyfold_sink_tasks_replaced_total": {"cause": set(REPLACED_CAUSES)},
    "keyfold_compactor_failures_total": {"kind": set(FAILURES)},
    "keyfold_table_failures_total": {"step": set(STEPS)},
    "keyfold_replica_partitions": {"state": {state.value for state in ReplicaState}},
}


@dataclass(frozen=True, slots=True)
class Rule:
    group: str
    alert: str
    expression: str
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def expressions(self) -> list[str]:
        """Return the metrics of the alert's expression and of its annotations."""
        asked = [found.replace("%q", '"x"') for text in self.annotations.values() for found in QUERY.findall(text)]
        return [self.expression, *asked]


def rules() -> Iterator[Rule]:
    for group in GROUPS:
        for rule in group["rules"]:
            yield Rule(group["name"], rule["alert"], rule["expr"], rule["labels"], rule["annotations"])


RULES = list(rules())
each_rule = each("rule", {rule.alert: rule for rule in RULES})


def test_every_declared_metric_appears_in_a_scrape() -> None:
    assert unserved() == []


@each_rule
def test_an_alert_uses_only_existing_metrics_and_labels(rule: Rule) -> None:
    known = all_served()
    for expression in rule.expressions:
        names = names_in(expression)
        assert names.metrics, expression
        assert names.metrics <= set(known)
        for matcher in names.matchers:
            assert matcher.label in known[matcher.metric] | TARGET_LABELS, f"{matcher.metric} has no {matcher.label}"
            assert not unknown_values(matcher), f"{matcher.metric} never has {matcher.label} {unknown_values(matcher)}"
        there = frozenset().union(*(known[metric] for metric in names.metrics)) | TARGET_LABELS
        assert names.grouped_by <= there, f"{names.grouped_by - there} is a label of none of {names.metrics}"


def unknown_values(matcher: Matcher) -> set[str]:
    values = VALUES.get(matcher.metric, {}).get(matcher.label)
    return set(matcher.value.split("|")) - values if values is not None else set()


@each_rule
def test_an_alert_queries_only_its_own_service(rule: Rule) -> None:
    service = rule.group.removeprefix("keyfold-")
    assert rule.labels["service"] == service
    for expression in rule.expressions:
        own = set(served(service)) if service in SERVICES else {"up"}
        assert names_in(expression).metrics <= own, "a chart leaves out the groups of services that do not run"


@each_rule
def test_an_alert_on_a_shared_metric_name_selects_keyfolds_series(rule: Rule) -> None:
    foreign = {name for name in names_in(rule.expression).metrics if name.startswith("kafka_")}
    if foreign:
        assert any(name.startswith("keyfold_") for name in names_in(rule.expression).metrics), foreign


@each_rule
def test_an_alert_has_a_description_and_an_existing_runbook(rule: Rule) -> None:
    assert set(rule.labels) == {"severity", "service"}
    assert rule.labels["severity"] in {"critical", "warning"}
    assert set(rule.annotations) == {"summary", "description", "runbook"}
    page = ROOT / rule.annotations["runbook"]
    assert page.parent == RUNBOOKS
    assert page.stem == kebab(rule.alert.removeprefix("Keyfold"))
    assert f"`{rule.alert}`" in page.read_text(encoding="utf-8")


@each_rule
def test_annotations_use_labels_of_their_alert(rule: Rule) -> None:
    used = {name for text in rule.annotations.values() for name in re.findall(r"\$labels\.(\w+)", text)}
    fired = [case for case in firing() if case["alertname"] == rule.alert]
    (expected,) = fired[0]["exp_alerts"]
    assert used <= set(expected["exp_labels"])


@pytest.mark.parametrize("name", ["metrics.md", "metrics-sink.md", "metrics-replica.md"])
def test_queries_on_the_metrics_pages_use_only_existing_names(name: str) -> None:
    section = (ROOT / "docs" / name).read_text(encoding="utf-8").partition("## Questions and alerts")[2]
    (block,) = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    known = all_served()
    for question in block.strip().split("\n\n"):
        names = names_in(question)
        assert names.metrics, question
        assert names.metrics <= set(known)
        assert all(matcher.label in known[matcher.metric] for matcher in names.matchers)


def test_every_runbook_belongs_to_an_alert() -> None:
    assert {page.name for page in RUNBOOKS.glob("*.md")} == {Path(rule.annotations["runbook"]).name for rule in RULES}


def test_names_of_alerts_are_unique() -> None:
    assert len({rule.alert for rule in RULES}) == len(RULES)


def test_each_alert_has_a_firing_and_a_silent_test_case() -> None:
    silent = {test["alertname"] for case in CASES for test in case["alert_rule_test"] if not test["exp_alerts"]}
    assert sorted(test["alertname"] for test in firing()) == sorted(rule.alert for rule in RULES)
    assert silent == {rule.alert for rule in RULES}


def test_the_test_cases_use_only_served_series() -> None:
    known = all_served()
    for case in CASES:
        for series in case["input_series"]:
            names = names_in(series["series"])
            (metric,) = names.metrics
            assert metric in known
            if metric == "up":
                continue
            labels = {matcher.label for matcher in names.matchers}
            assert labels - TARGET_LABELS == known[metric], case["name"]
            assert not [m for m in names.matchers if unknown_values(m)]


def firing() -> list[dict[str, Any]]:
    return [test for case in CASES for test in case["alert_rule_test"] if test["exp_alerts"]]


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
