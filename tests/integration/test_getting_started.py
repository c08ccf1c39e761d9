"""`docs/getting-started.md` runs as it is written: its files are written, its commands run, in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.spark
def test_the_getting_started_page_runs_as_written(
    broker: KafkaBroker, local_s3: LocalS3Process, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **local_s3.environment,
        "BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    local_s3.create_bucket("keyfold-demo")
    said: dict[str, list[str]] = {}
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"])
            continue
        for line in block["text"].splitlines() if block["kind"] == "sh" else ():
            answer = subprocess.run(
                ["bash", "-euc", line],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert answer.returncode == 0, f"{line}\n{answer.stdout}{answer.stderr}"
            said.setdefault(line, []).append(answer.stdout)

    def offsets(line: str) -> list[list[int]]:
        return [[int(row.split("\t")[0].split("@")[1]) for row in out.splitlines()] for out in said[line]]

    cat = "keyfold log cat s3://keyfold-demo/topics users"
    assert offsets(cat) == [[0, 1, 2, 3, 4], [2, 3, 4], [2, 3]]  # sunk, after pass 1, after pass 2
    assert offsets(f"{cat} --from-offset 0") == [[2, 3]]
    assert "{b'user-1': b'Anna', b'user-3': b'Cid'}" in said["python read.py"][0]
    assert said["python spark.py"][0].count("user-") == 2
