"""Which Spark this compactor runs on, and a refusal in words where it is another.

The range is what `make test-spark` has run; docs/spark-platforms.md says which releases, and what of it. Two things are
asked: the pyspark that Python would import, before anything is started; and the JVM behind it, which may be of another
version where PATH or SPARK_HOME lead elsewhere. Distributions add words of their own (`3.5.5-amzn-1`): only numbers
count.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

from keyfold.errors import ConfigError

OLDEST: Final = (3, 5)
NEWEST: Final = (4, 3)


def supported() -> str:
    """The range, for people."""
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def found_pyspark() -> str | None:
    """The version of the pyspark that `import` would find, without the second that importing it costs; None: none.

    Spark's own folder (under spark-submit) has no package metadata, so the version is read from its source. A pyspark
    that keeps it elsewhere is imported to ask it.
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
    """Refuse a pyspark outside the range. Raises `ConfigError`."""
    if found is None:
        hint = "install keyfold[spark], or run this with the Python that spark-submit uses"
        raise ConfigError("pyspark", f"is not installed; Spark {supported()} is needed", hint=hint)
    if not OLDEST <= minor_of(found) <= NEWEST:
        raise ConfigError(
            "pyspark",
            f"version {found} was found; keyfold's compactor needs Spark {supported()}",
            hint=f"install pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}, or use a cluster that has it",
        )


def check_jvm(jvm: str, pyspark: str) -> None:
    """Refuse a JVM of another Spark than pyspark's: what the two tell each other differs. Raises `ConfigError`."""
    if minor_of(jvm) != minor_of(pyspark):
        raise ConfigError(
            "pyspark",
            f"version {pyspark} is connected to Spark {jvm}; both must have the same minor version",
            hint="install the cluster's version of pyspark, or unset SPARK_HOME if it points to another Spark",
        )


def minor_of(version: str) -> tuple[int, int]:
    """Major and minor version; (0, 0) where there are none to be seen."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
