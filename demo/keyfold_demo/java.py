"""Java, and jars of Kafka and Hadoop: found or fetched once, with nothing to install by hand.

A broker needs a Java 17 and some fifty jars. The jars come from Maven Central through the Ivy that pyspark carries, so
no Maven is needed. They are kept in a cache folder and fetched again only when the versions asked for change.

    find_java()                    path of a java that is new enough, or JavaMissing in one line
    kafka_jars(default_cache())    folder of a broker's jars; first call on a machine: 15 to 40 s
    s3a_jars(default_cache())      folder of what stock Spark lacks to read from S3: 36 small jars
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.runtime.extras import needs_extra

KAFKA_VERSION: Final = "4.3.1"
JAVA_MINIMUM: Final = 17

# A JVM that lives for seconds starts sooner without its second compiler and its parallel collector.
QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_AWS_SDK: Final = "software.amazon.awssdk"
_AWS_SDK_VERSION: Final = "2.35.4"
_AWS_SDK_PARTS: Final = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
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
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Java {JAVA_MINIMUM} or newer is required: {where}", hint=hint)
    version = _java_version(java)
    if version < JAVA_MINIMUM:
        found = f"{java} is Java {version}" if version else f"{java} does not report its version"
        raise JavaMissing(f"Java {JAVA_MINIMUM} or newer is required: {found}", hint=hint)
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


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artifacts (organisation, name, version) with all that they need, but for `excluded` (organisation, name or "").

    `folder` is where they are kept below the cache; it names the versions, so other versions go elsewhere.
    """

    title: str
    folder: str
    wanted: tuple[tuple[str, str, str], ...]
    excluded: tuple[tuple[str, str], ...] = ()

    def path(self, cache: Path) -> Path:
        """The folder in this cache, fetched or not."""
        return cache / self.folder


# slf4j-simple, so that what a broker has to complain about reaches its log file; without a binding it stays silent.
KAFKA: Final = JarSet(
    "Kafka's jars",
    f"kafka-libs/{KAFKA_VERSION}-1.7.36",
    (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")),
)


def s3a_set() -> JarSet:
    """Hadoop's S3A for the installed pyspark, in parts: 13 MB where the SDK's bundle takes 686.

    What Spark brings itself is left out: netty, slf4j, commons and the HTTP client.
    """
    hadoop = _pyspark_jar("hadoop-client-api-*.jar").stem.removeprefix("hadoop-client-api-")
    return JarSet(
        "Spark's S3 jars",
        f"s3a-libs/{hadoop}-{_AWS_SDK_VERSION}",
        (
            ("org.apache.hadoop", "hadoop-aws", hadoop),
            *((_AWS_SDK, part, _AWS_SDK_VERSION) for part in _AWS_SDK_PARTS),
        ),
        (
            (_AWS_SDK, "bundle"),
            ("org.wildfly.openssl", ""),
            ("io.netty", ""),
            ("org.slf4j", ""),
            ("commons-codec", ""),
            ("commons-logging", ""),
            ("org.apache.httpcomponents", ""),
        ),
    )


def kafka_jars(cache: Path) -> Path:
    """The folder that holds a broker's jars, fetched if it is not there yet. Raises `KeyfoldError`."""
    return jars(KAFKA, cache)


def s3a_jars(cache: Path) -> Path:
    """The folder that holds Spark's S3 jars, fetched if it is not there yet. Raises `KeyfoldError`."""
    return jars(s3a_set(), cache)


def fetch_missing(cache: Path, say: Callable[[str], None]) -> None:
    """Bring all jar sets that are not in the cache yet, side by side; `say` hears which. Raises `KeyfoldError`."""
    missing = [wanted for wanted in (KAFKA, s3a_set()) if not wanted.path(cache).is_dir()]
    for wanted in missing:
        say(f"fetching {wanted.title} from Maven Central into {wanted.path(cache)}")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: jars(each, cache), missing))


def jars(wanted: JarSet, cache: Path) -> Path:
    """The folder that holds a set of jars, fetched if it is not there yet. Raises `KeyfoldError`."""
    folder = wanted.path(cache)
    if not folder.is_dir():
        with locked(folder.parent.with_suffix(".lock")):
            if not folder.is_dir():
                _fetch(wanted, folder)
    return folder


def _fetch(jars: JarSet, folder: Path) -> None:
    """Retrieve into a temporary neighbour and rename: the folder is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_module(jars))
        command = [find_java(), "-jar", str(_pyspark_jar("ivy-*.jar")), "-ivy", str(work / "ivy.xml")]
        command += ["-confs", "default", "-types", "jar", "bundle", "-cache", str(work / "cache"), "-warn"]
        command += ["-retrieve", str(work / "libs" / "[artifact]-[revision].[ext]")]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S)
        missing = [f"{n}-{v}" for _, n, v in jars.wanted if not (work / "libs" / f"{n}-{v}.jar").is_file()]
        if answer.returncode != 0 or missing:
            tail = "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-15:])
            what = ", ".join(missing) or "Ivy failed"
            raise KeyfoldError(
                f"{jars.title} could not be fetched from Maven Central ({what}):\n{tail}",
                hint="this needs the network once; run the command again",
            )
        (work / "libs").rename(folder)


def _ivy_module(jars: JarSet) -> str:
    wanted = "".join(f'<dependency org="{o}" name="{n}" rev="{v}" conf="*->default"/>' for o, n, v in jars.wanted)
    excluded = "".join(f'<exclude org="{o}" module="{n}"/>' if n else f'<exclude org="{o}"/>' for o, n in jars.excluded)
    return (
        '<ivy-module version="2.0"><info organisation="keyfold" module="demo"/>'
        f"<dependencies>{wanted}{excluded}</dependencies></ivy-module>"
    )


def _pyspark_jar(pattern: str) -> Path:
    """The jar of the installed pyspark that fits."""
    with needs_extra("the demo", "demo"):
        import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob(pattern))
    if not jars:
        raise KeyfoldError(f"this pyspark has no {pattern}", hint="pip install 'keyfold[demo]'")
    return jars[-1]


def main() -> int:
    """`python -m keyfold_demo.java`: fetch the jars ahead of use; exit code 2 where Java is missing."""
    try:
        find_java()
        fetch_missing(default_cache(), lambda line: print(line, file=sys.stderr))  # noqa: T201 - a command
    except KeyfoldError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2 if isinstance(error, JavaMissing) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
