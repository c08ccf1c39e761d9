"""The alerts before Prometheus itself: its check of the rules, and each alert in a world that it fires in and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.promtool import is_built, promtool

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not is_built(), reason="`make test-alerts` builds promtool, which takes its time"),
]

FOLDER = Path(__file__).parents[2] / "infra" / "prometheus"
WORLDS = ("alerts_test.yaml", "alerts_hours_test.yaml")


def test_prometheus_accepts_the_rules() -> None:
    answer = promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("worlds", WORLDS)
def test_each_alert_fires_when_it_should_and_not_when_it_should_not(worlds: str) -> None:
    answer = promtool("test", "rules", worlds, folder=FOLDER)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    """What the test above would say of a broken alert: it must say something."""
    text = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
    broken = text.replace("keyfold_compactor_partitions_held) > 0", "keyfold_compactor_partitions_held) > 1000")
    assert broken != text
    (tmp_path / "alerts.yaml").write_text(broken, encoding="utf-8")
    (tmp_path / WORLDS[1]).write_bytes((FOLDER / WORLDS[1]).read_bytes())
    answer = promtool("test", "rules", WORLDS[1], folder=tmp_path)
    assert answer.returncode != 0
    assert "KeyfoldTombstonesHeld" in answer.stdout + answer.stderr
