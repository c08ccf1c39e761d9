"""The dashboard matches its description, uses only served names, and has a layout that Grafana accepts."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from keyfold.table import metrics as table_metrics
from keyfold_compactor.report import metric_names as compactor_names
from keyfold_replicator.status import metric_names as replica_names
from keyfold_server import metrics as server_metrics
from keyfold_sink.metrics.names import METRICS as SINK_METRICS
from tests.support.each import each
from tests.support.grafana_dashboard import COLUMNS, COMMAND, PAGE, text
from tests.support.promql import names_in
from tests.support.served_metrics import TARGET_LABELS, all_served

DASHBOARD: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
each_panel = each("panel", {f"{panel['id']}-{panel['title']}": panel for panel in PANELS})

# Prometheus makes this one of the rules that it evaluates.
ALERTS = {"ALERTS": frozenset({"alertname", "alertstate", "severity", "service"})}

# Shown in another way, or of no use on a dashboard: words, Connect's means and maxima beside what is counted here.
LEFT_OUT = {
    *("keyfold_compactor_partitions", "keyfold_compactor_runs_total", "keyfold_compactor_segments_expired_total"),
    "kafka_log_logcleanermanager_uncleanable_bytes",
    *("keyfold_sink_lag_records_max", "keyfold_sink_blocked_partitions", "keyfold_sink_last_commit_timestamp_seconds"),
    *("keyfold_sink_open_segments", "keyfold_sink_reading_paused", "keyfold_sink_reading_pauses_total"),
    *("keyfold_sink_objects_written_total", "keyfold_sink_store_sent_bytes_total"),
    *("keyfold_sink_store_received_bytes_total", "keyfold_sink_task_report_age_seconds"),
    *("keyfold_sink_partition_last_commit_timestamp_seconds", "keyfold_sink_partition_next_offset"),
    "keyfold_sink_partition_end_offset",
    *("keyfold_replica_earliest_pending_timestamp_seconds", "keyfold_replica_latest_pending_timestamp_seconds"),
    *("keyfold_replica_pending_segments", "keyfold_replica_last_attempt_timestamp_seconds"),
    *("keyfold_replica_next_attempt_timestamp_seconds", "keyfold_replica_partition_pending_bytes"),
    *("keyfold_replica_pins_total", "keyfold_replica_plans_repeated_total", "keyfold_replica_sent_objects_total"),
    *("keyfold_replica_copied_objects_total", "keyfold_replica_found_objects_total"),
    *("keyfold_replica_deleted_objects_total", "keyfold_replica_deleted_orphans_total"),
    "keyfold_replica_failures_total",
}


def test_the_dashboard_is_generated_from_its_description() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), f"run `{COMMAND}`"


@each_panel
def test_a_panel_uses_only_existing_metrics_and_labels(panel: dict[str, Any]) -> None:
    known = all_served() | ALERTS
    for target in panel["targets"]:
        names = names_in(target["expr"])
        assert names.metrics, target["expr"]
        assert names.metrics <= set(known), names.metrics - set(known)
        there = frozenset().union(*(known[metric] for metric in names.metrics)) | TARGET_LABELS
        for matcher in names.matchers:
            assert matcher.label in known[matcher.metric] | TARGET_LABELS, f"{matcher.metric} has no {matcher.label}"
        assert names.grouped_by - {"le"} <= there
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= (names.grouped_by or there), "what was summed away cannot be in a legend"


@each_panel
def test_a_panel_uses_the_dashboards_variables(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        chosen = {(matcher.metric, matcher.label): matcher.value for matcher in names_in(target["expr"]).matchers}
        for metric in names_in(target["expr"]).metrics - {"ALERTS"}:
            assert chosen[metric, "namespace"] == "$namespace"
            assert chosen[metric, "job"] == "$job"
            if "topic" in all_served()[metric]:
                assert chosen[metric, "topic"] == "$topic"


def test_every_metric_has_a_panel() -> None:
    asked = {name for panel in PANELS for target in panel["targets"] for name in names_in(target["expr"]).metrics}
    shown = {name.removesuffix("_bucket") for name in asked}
    declared = {metric.name for metric in SINK_METRICS if metric.name.startswith("keyfold_")}
    declared |= {metric.name for metric in (*compactor_names.METRICS, *replica_names.METRICS)}
    declared |= {metric.name for metric in (*table_metrics.METRICS, *server_metrics.METRICS)}
    assert declared - shown == LEFT_OUT, "give it a panel, or say here that it needs none"


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    assert max(Counter(panel["id"] for panel in DASHBOARD["panels"]).values()) == 1
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        for y in range(place["y"], place["y"] + place["h"]):
            for x in range(place["x"], place["x"] + place["w"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    bottom = max(y for _, y in taken)
    assert {y for _, y in taken} == set(range(bottom + 1)), "no empty line"


def test_no_panel_names_a_particular_data_source() -> None:
    (source,) = (one for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource")
    assert source["name"] == "datasource"
    queried = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert [one["name"] for one in queried] == ["namespace", "job", "topic"]
    holders = [*queried, *PANELS, *(target for panel in PANELS for target in panel["targets"])]
    assert {holder["datasource"]["uid"] for holder in holders} == {"${datasource}"}
    assert "id" not in DASHBOARD, "Grafana gives it one at import"


@each_panel
def test_a_panel_has_a_title_and_a_description(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(set(legends)) == len(legends)
    assert panel["type"] != "timeseries" or all(legends)
