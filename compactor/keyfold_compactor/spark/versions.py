"""Supported versions of Spark, and clear errors for others.

`make test-spark` has tested the range; docs/spark-platforms.md lists the releases and what was tested. Two versions are
checked: that of the pyspark that Python would import, before anything starts, and that of the JVM behind it, which may
differ if PATH or SPARK_HOME point elsewhere. Suffixes of distributions (`3.5.5-amzn-1`) are ignored.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

from keyfold.errors import ConfigError, ExtraMissing

OLDEST: Final = (3, 5)
NEWEST: Final = (4, 3)


def supported() -> str:
    """Return the range as text."""
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def found_pyspark() -> str | None:
    """Return the version of the pyspark that `import` would find, without importing it (which takes a second), or None.

    Spark's own folder (under spark-submit) has no package metadata, so the version is read from the source. A pyspark
    that keeps its version elsewhere is imported.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:  # in a zip, as YARN ships it
        text = ""
    match = re.search(r"""^__version__[^=]*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return match.group(1) if match else str(importlib.import_module("pyspark").__version__)


def check_pyspark(found: str | None) -> None:
    """Raise `ExtraMissing` without a pyspark, and `ConfigError` for one outside the range."""
    if found is None:
        reason = (
            f"pyspark {supported()} is not installed, and this is not the Python that spark-submit uses; "
            "small logs need no Spark: --engine local"
        )
        raise ExtraMissing("the compactor", "spark", reason)
    if not OLDEST <= minor_of(found) <= NEWEST:
        raise ConfigError(
            "pyspark",
            f"version {found} was found; keyfold's compactor needs Spark {supported()}",
            hint=f"install pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}, or use a cluster that has it",
        )


def check_jvm(jvm: str, pyspark: str) -> None:
    """Raise `ConfigError` if the JVM's Spark and pyspark differ in their minor version: their protocols differ."""
    if minor_of(jvm) != minor_of(pyspark):
        raise ConfigError(
            "pyspark",
            f"version {pyspark} is connected to Spark {jvm}; both must have the same minor version",
            hint="install the cluster's version of pyspark, or unset SPARK_HOME if it points to another Spark",
        )


def minor_of(version: str) -> tuple[int, int]:
    """Return major and minor version, or (0, 0) if the text has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
