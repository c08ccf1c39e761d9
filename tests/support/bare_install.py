"""What a bare `pip install keyfold` can do: every module of the library, and every command, without an extra.

A command either works, or ends with one line that names the extra it needs. `tests.support.bare_probe` does the work in
the Python in question. Two callers look at what it found:

    tests/unit/cli/test_bare_install.py   this environment, with the libraries of all extras hidden
    tests.support.pythons                 the wheel in other Pythons, where these libraries are not installed
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold_demo.s3_endpoint import REGION, S3Endpoint
from tests.support.logs import MadeLog, records
from tests.support.root import ROOT

LIBRARIES_OF_EXTRAS: Final = (
    *("anyio", "attr", "attrs", "authlib", "cachetools", "certifi", "confluent_kafka", "fastapi", "fb303", "fsspec"),
    *("h11", "hive_metastore", "httpx2", "jinja2", "markupsafe", "mmh3", "moto", "orjson", "pandas", "py4j"),
    *("pyiceberg", "pyparsing", "pyroaring", "pyspark", "requests", "starlette", "strictyaml", "tenacity", "uvicorn"),
    "werkzeug",
)
"""Top-level modules that no bare installation has."""

MODULES: Final = {
    "keyfold.http_server": "serve",
    "keyfold.kafka.client": "kafka",
    "keyfold.kafka.cluster": "kafka",
    "keyfold.kafka.reading": "kafka",
    "keyfold.restore.kafka_target": "kafka",
    "keyfold.spark": "spark",
    "keyfold.table": "table",
}
"""The modules that need an extra; so do the modules below a package."""

_CONTROL: Final = ("status", "pause", "resume", "stop", "flush", "restart", "offsets")
COMMANDS: Final = (
    ("log list {url}", ""),
    ("log describe {url} users", ""),
    ("log cat {url} users --latest --json", ""),
    ("log get {url} users b", ""),
    ("log map {url} --html {folder}/map.html --exact", ""),
    ("log files {url} users --json", ""),
    ("log export {url} users --latest --to {folder}/parquet", ""),
    ("log verify {url} users", ""),
    ("log verify {url} users --spark", "spark"),
    ("log verify {url} users --bootstrap-servers 127.0.0.1:1", "kafka"),
    ("log repair {url} users -p 0 --dry-run --replace-damaged", ""),
    ("restore {url} users --bootstrap-servers 127.0.0.1:1 --dry-run", "kafka"),
    ("table sync {url} users --to {replica}/table", "table"),
    ("table status {replica}/table", "table"),
    ("table verify {url} users {replica}/table", "table"),
    ("table merge {replica}/table", "table"),
    ("table drop {replica}/table --yes", "table"),
    ("serve {url} --listen http://127.0.0.1:0", "serve"),
    ("sink validate {folder}/sink.json", "sink"),
    ("sink run {folder}/sink.json", "sink"),
    *((f"sink {name} {{folder}}/sink.json", "sink") for name in _CONTROL),
    ("compact plan {folder}/compact.json", ""),
    ("compact run {folder}/compact.json --once", ""),
    ("compact run {folder}/compact.json --once --engine local", ""),
    ("compact run {folder}/compact.json --once --engine spark", "spark"),
    ("replica add {url} dr --to {replica}", ""),
    ("replica list {url}", ""),
    ("replica edit {url} dr --all-topics", ""),
    ("replica run {url} --once", ""),
    ("replica status {url} dr --check", ""),
    ("replica resync {url} dr", ""),
    ("replica enable-compaction {replica}", ""),
    ("replica disable-compaction {replica}", ""),
    ("replica pause {url} dr", ""),
    ("replica resume {url} dr", ""),
    ("replica promote {url} dr --dry-run", ""),
    ("replica demote {url} --to-replica-of {replica} --dry-run", ""),
    ("replica remove {url} dr", ""),
    ("demo", "demo"),
)
"""Each command with its arguments, and the extra that it needs."""

REFUSED: Final = ("log repair", "replica demote")
"""Commands that find nothing to do, and say so with exit code 1."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A bucket with a log, a bucket for a replica, and a folder with configuration files."""

    store: S3Endpoint
    bucket: str
    replica: str
    folder: Path

    @classmethod
    def make(cls, store: S3Endpoint, name: str, folder: Path) -> Scene:
        """Make the buckets and the files. `name` is new in the store."""
        scene = cls(store, store.create_bucket(name), store.create_bucket(f"{name}-dr"), folder)
        with closing(store.location(scene.bucket).open()) as opened:
            made = MadeLog(store=opened, place=Place("topics", "users", 0), clock=SystemClock(), random=Random(7))
            made.append(records("a=1 b=2 a= b=3 c=4"))
        connection = {
            "s3.bucket.name": scene.bucket,
            "s3.region": REGION,
            "store.url": store.url,
            "topics.dir": "topics",
        }
        folder.mkdir(parents=True, exist_ok=True)
        sink = {"name": "users", "topics": "users", "bootstrap.servers": "127.0.0.1:1", **connection}
        (folder / "sink.json").write_text(json.dumps(sink))
        (folder / "compact.json").write_text(json.dumps(connection))
        return scene

    def commands(self) -> list[list[str]]:
        """Return the words of each command, without `keyfold`."""
        places = {"url": f"s3://{self.bucket}/topics", "replica": f"s3://{self.replica}/topics", "folder": self.folder}
        return [line.format(**places).split() for line, _ in COMMANDS]


def findings(python: str | Path, scene: Scene, *, hidden: Sequence[str] = ()) -> list[str]:
    """Return what is wrong with an installation: modules and commands that say less, or need more, than they should."""
    task = {"hidden": hidden, "commands": scene.commands()}
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "KEYFOLD_DEBUG"}}
    done = subprocess.run(
        [str(python), str(ROOT / "tests" / "support" / "bare_probe.py")],
        input=json.dumps(task),
        env={**environment, **scene.store.environment},
        cwd=scene.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        return [f"the probe failed: {done.stderr}"]
    found: dict[str, Any] = json.loads(done.stdout)
    return [*_modules(found["modules"]), *_commands(found["commands"])]


def _modules(failed: Mapping[str, str]) -> Iterator[str]:
    for name, extra in failed.items():
        if MODULES.get(name) != extra and not any(
            name.startswith(f"{top}.") and MODULES[top] == extra for top in MODULES
        ):
            yield f"import {name}: {extra}"
    for name in MODULES:
        if name not in failed:
            yield f"import {name}: works without an extra"


def _commands(outcomes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for (line, extra), outcome in zip(COMMANDS, outcomes, strict=True):
        named = re.search(
            r"^error: .* needs the extra `(\w+)`: .*\nhint: pip install 'keyfold\[(\w+)\]'", outcome["err"]
        )
        expected = (extra, extra) if extra else None
        code = 1 if extra or line.startswith(REFUSED) else 0
        if (named and named.groups()) != expected or outcome["code"] != code:
            yield f"keyfold {line}: exit code {outcome['code']}: {outcome['err'] or outcome['out']}"
