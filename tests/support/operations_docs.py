"""`make docs`: the table of alerts in docs/operations/README.md is printed from infra/prometheus/alerts.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "operations" / "README.md"
ALERTS: Final = ROOT / "infra" / "prometheus" / "alerts.yaml"
COMMAND: Final = "make docs"

_PRINTED: Final = re.compile(r"(<!-- printed: alerts -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with its table as it must be."""
    return _PRINTED.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", text)


def table() -> str:
    """A row for each alert, in the file's order; what it says is its runbook's title."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rows = [_row(rule) for group in groups for rule in group["rules"]]
    return "\n".join(["| alert, and its page | severity | what it says |", "| --- | --- | --- |", *rows]) + "\n"


def _row(rule: dict[str, Any]) -> str:
    runbook = ROOT / rule["annotations"]["runbook"]
    title = runbook.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    link = runbook.relative_to(PAGE.parent).as_posix()
    return f"| [`{rule['alert']}`]({link}) | {rule['labels']['severity']} | {title} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
