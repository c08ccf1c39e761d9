"""The alerts before Prometheus itself: its check of the rules, and each alert in a world that it fires in and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.promtool import promtool

pytestmark = pytest.mark.real

FOLDER = Path(__file__).parents[2] / "infra" / "prometheus"


def test_prometheus_accepts_the_rules() -> None:
    answer = promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_each_alert_fires_when_it_should_and_not_when_it_should_not() -> None:
    answer = promtool("test", "rules", "alerts_test.yaml", folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    """What the test above would say of a broken alert: it must say something."""
    text = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
    broken = text.replace("keyfold_sink_stalled_seconds) > 900", "keyfold_sink_stalled_seconds) > 900000")
    assert broken != text
    (tmp_path / "alerts.yaml").write_text(broken, encoding="utf-8")
    (tmp_path / "alerts_test.yaml").write_bytes((FOLDER / "alerts_test.yaml").read_bytes())
    answer = promtool("test", "rules", "alerts_test.yaml", folder=tmp_path)
    assert answer.returncode != 0
    assert "KeyfoldSinkStalled" in answer.stdout + answer.stderr
