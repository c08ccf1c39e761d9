"""`make audit` never reports a package as clean without an answer about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import CLEAN, UNKNOWN, VULNERABLE, judge, main
from tests.support.pins import constraints

SOUND: dict[str, Any] = {"name": "sound", "version": "1", "vulns": []}
WRONG: dict[str, Any] = {"name": "wrong", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}
SKIPPED: dict[str, Any] = {"name": "other", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("dependencies", "pinned", "code", "said"),
    [
        ([SOUND], {"sound"}, CLEAN, "no known vulnerability in 1 packages"),
        ([SOUND, WRONG], {"sound", "wrong"}, VULNERABLE, "wrong 2: X-1, fixed in 3"),
        ([SOUND, SKIPPED], {"sound", "other"}, UNKNOWN, "nothing is known about 1 of 2 packages: other"),
        ([SOUND], {"sound", "other"}, UNKNOWN, "nothing is known about 1 of 2 packages: other"),
        ([], {"sound"}, UNKNOWN, "NOT AUDITED"),
        ([WRONG, SKIPPED], {"wrong", "other"}, VULNERABLE, "NOT AUDITED: nothing is known about 1 of 2"),
    ],
)
def test_only_answered_versions_count(dependencies: list[Any], pinned: set[str], code: int, said: str) -> None:
    found, lines = judge(pinned, {"dependencies": dependencies})
    assert found == code
    assert said in "\n".join(lines)


@pytest.mark.parametrize(
    "program",
    [
        """import json; print(json.dumps({"dependencies": [{"name": "boto3", "skip_reason": "not found"}]}))""",
        """raise SystemExit("no way to the network")""",
    ],
)
def test_an_audit_without_answers_is_reported(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_audit = tmp_path / "pip-audit"
    pip_audit.write_text(f"#!{sys.executable}\n{program}\n")
    pip_audit.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main([]) == UNKNOWN
    count = len(constraints())
    assert f"NOT AUDITED: nothing is known about {count} of {count} packages" in capsys.readouterr().err
