"""Which Spark is refused, and in which words."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from keyfold.errors import ConfigError, ExtraMissing
from keyfold_compactor.spark.versions import NEWEST, OLDEST, check_jvm, check_pyspark, found_pyspark, minor_of
from tests.support.root import ROOT

pytestmark = pytest.mark.any_spark


@pytest.mark.parametrize("version", ["3.5.0", "3.5.5-amzn-1", "4.0.0", "4.1.4", "4.3.0", "4.3.1.dev0"])
def test_tested_versions_are_accepted_with_any_distribution_suffix(version: str) -> None:
    check_pyspark(version)
    check_jvm(version, version)


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8", "4.4.0", "5.0.0", "unknown"])
def test_another_version_is_refused_with_both_named(version: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_pyspark(version)
    assert version in str(caught.value)
    assert "3.5 to 4.3" in str(caught.value)
    assert "pyspark>=3.5,<4.4" in str(caught.value.hint)


def test_a_missing_pyspark_is_reported() -> None:
    with pytest.raises(ExtraMissing, match=re.escape("needs the extra `spark`: pyspark 3.5 to 4.3 is not installed")):
        check_pyspark(None)


def test_a_jvm_of_another_minor_version_is_refused() -> None:
    check_jvm("4.0.1", "4.0.5")
    with pytest.raises(ConfigError, match=r"version 4\.0\.5 is connected to Spark 4\.1\.0"):
        check_jvm("4.1.0", "4.0.5")


def test_the_version_is_known_without_importing_spark() -> None:
    pyspark = pytest.importorskip("pyspark")
    assert found_pyspark() == pyspark.__version__
    names = "found_pyspark(), 'pyspark' in sys.modules"
    code = f"import sys; from keyfold_compactor.spark.versions import *; print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [pyspark.__version__, "False"]


def test_a_pyspark_without_metadata_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '3.4.1'\n")
    code = "from keyfold_compactor.spark.versions import *; check_pyspark(found_pyspark())"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "version 3.4.1 was found; keyfold's compactor needs Spark 3.5 to 4.3" in done.stderr


def test_an_old_spark_exits_with_2_before_anything_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not to be imported')\n")
    (package / "version.py").write_text('__version__: str = "3.4.4"\n')
    config = tmp_path / "c.properties"
    config.write_text("s3.bucket.name=no-such-bucket\nstore.url=http://127.0.0.1:1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", "from keyfold.cli import main; main()", "compact", "run", str(config), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "`pyspark`: version 3.4.4 was found; keyfold's compactor needs Spark 3.5 to 4.3" in done.stderr


def test_the_checked_version_range_is_the_packages() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = f"pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    assert wanted in extras["spark"]
    pinned = re.search(r"^pyspark==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert minor_of(pinned.group(1)) == NEWEST


def test_the_version_check_needs_no_spark() -> None:
    assert "pyspark" not in vars(importlib.import_module("keyfold_compactor.spark.versions"))
