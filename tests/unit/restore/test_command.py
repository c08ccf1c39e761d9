"""The command `keyfold restore`, called wrongly, and where the Kafka client is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keyfold.cli.app import run

URL = "s3://bucket/topics"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["users"], "missing required key `bootstrap.servers`"),
        (["users", "-b", "a:1", "--to-offset", "x"], "neither OFFSET nor PARTITION:OFFSET"),
        (["users", "-b", "a:1", "--latest", "--to-offset", "5"], "`--latest`: cannot be combined with --to-offset"),
        (["users", "-b", "a:1", "--to-topic", "no/name"], "'no/name' is not a valid topic name"),
        (["users", "-b", "a:1", "--topic-config", "retention.ms"], "is not KEY=VALUE"),
        (["users", "-b", "a:1", "--to-timestamp", "yesterday"], "is not a time: give milliseconds or ISO-8601"),
        (
            ["users", "-b", "a:1", "--group-offsets-to", "new.csv"],
            "--group-offsets and --group-offsets-to must be given together",
        ),
        (["users", "-b", "a b"], "is not host:port"),
        (["users", "-b", "a:1", "--journal", "file:///x"], "is not of the form s3://"),
        (["users", "-b", "a:1", "--max-records-per-second", "0"], "0"),
    ],
)
def test_a_usage_error_is_reported_in_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["restore", URL, *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_help_has_an_example() -> None:
    assert run(["restore", "--help"]) == 0


def test_a_missing_kafka_client_is_reported_with_what_to_install() -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None; from keyfold.cli import main; "
        f"main(['restore', {URL!r}, 'users', '-b', 'a:1'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: the Kafka client needs the extra `kafka`: " in done.stderr
    assert "hint: pip install 'keyfold[kafka]'" in done.stderr
