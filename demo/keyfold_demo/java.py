"""Java, and Kafka's jars: found or fetched once, with nothing to install by hand.

A broker needs a Java 17 and some fifty jars. The jars come from Maven Central through the Ivy that pyspark carries, so
no Maven is needed. They are kept in a cache folder and fetched again only when the versions asked for change.

    find_java()                    path of a java that is new enough, or JavaMissing in one line
    kafka_jars(default_cache())    folder of the jars; first call on a machine: 15 to 40 s
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError

KAFKA_VERSION: Final = "4.3.1"
JAVA_MINIMUM: Final = 17

# slf4j-simple, so that what a broker has to complain about reaches its log file; without a binding it stays silent.
_JARS: Final = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_FETCH_TIMEOUT_S: Final = 600


class JavaMissing(KeyfoldError):
    """There is no Java on this machine that is new enough."""


def find_java() -> str:
    """The java of JAVA_HOME, else the first on PATH. Raises `JavaMissing` when there is none, or it is below 17."""
    home = os.environ.get("JAVA_HOME")
    candidate = str(Path(home) / "bin" / "java") if home else "java"
    java = shutil.which(candidate)
    hint = f"install a JDK {JAVA_MINIMUM} or newer and put it on PATH, or set JAVA_HOME"
    if java is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no java on PATH"
        raise JavaMissing(f"Java {JAVA_MINIMUM} or newer is needed: {where}", hint=hint)
    version = _java_version(java)
    if version < JAVA_MINIMUM:
        found = f"{java} is Java {version}" if version else f"{java} does not tell its version"
        raise JavaMissing(f"Java {JAVA_MINIMUM} or newer is needed: {found}", hint=hint)
    return java


def _java_version(java: str) -> int:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def default_cache() -> Path:
    """KEYFOLD_CACHE, else `.cache` of a source checkout, else `~/.cache/keyfold`."""
    given = os.environ.get("KEYFOLD_CACHE")
    if given:
        return Path(given).absolute()
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        return root / ".cache"
    return Path.home() / ".cache" / "keyfold"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time: what is fetched or built into a shared cache is made once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kafka_jars(cache: Path) -> Path:
    """The folder that holds a broker's jars, fetched if it is not there yet. Raises `KeyfoldError`."""
    folder = cache / "kafka-libs" / "-".join(version for _, _, version in _JARS)
    if not folder.is_dir():
        with locked(cache / "kafka-libs.lock"):
            if not folder.is_dir():
                _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    """Retrieve into a temporary neighbour and rename: the folder is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
        work = Path(name)
        wanted = "".join(f'<dependency org="{o}" name="{n}" rev="{v}" conf="*->default"/>' for o, n, v in _JARS)
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="keyfold" module="broker"/>'
            f"<dependencies>{wanted}</dependencies></ivy-module>"
        )
        command = [find_java(), "-jar", str(_ivy_jar()), "-ivy", str(work / "ivy.xml"), "-confs", "default"]
        command += ["-types", "jar", "bundle", "-cache", str(work / "cache"), "-warn"]
        command += ["-retrieve", str(work / "libs" / "[artifact]-[revision].[ext]")]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S)
        missing = [f"{n}-{v}" for _, n, v in _JARS if not (work / "libs" / f"{n}-{v}.jar").is_file()]
        if answer.returncode != 0 or missing:
            tail = "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-15:])
            raise KeyfoldError(
                f"Kafka's jars could not be fetched from Maven Central ({', '.join(missing) or 'Ivy failed'}):\n{tail}",
                hint="the network is needed once; run again",
            )
        (work / "libs").rename(folder)


def _ivy_jar() -> Path:
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise KeyfoldError("this pyspark carries no Ivy jar", hint="install keyfold[demo]")
    return jars[-1]
