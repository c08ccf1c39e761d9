"""What Kafka Connect's JsonConverter and Avro's Java decoder say: the originals, in a JVM, many questions at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from keyfold_demo import java

_CONNECT: Final = java.JarSet(
    "Connect's JSON converter",
    f"connect-libs/{java.KAFKA_VERSION}",
    tuple(("org.apache.kafka", name, java.KAFKA_VERSION) for name in ("connect-json", "connect-api", "kafka-clients")),
)
_SOURCE: Final = Path(__file__).parent / "java" / "Judge.java"


def json_question(value: bytes, **settings: str) -> str:
    """Does the JsonConverter with these settings (dots as underscores) take this?"""
    config = ",".join(f"{key.replace('_', '.')}={text}" for key, text in settings.items())
    return f"json {config} {value.hex()}"


def avro_question(schema: str, data: bytes) -> str:
    """Does this decode?"""
    return f"avro {schema.encode().hex()} {data.hex()}"


def ask(questions: Sequence[str]) -> list[tuple[bool, str]]:
    """Whether each is taken, and what was made of it or why not."""
    libs = java.jars(_CONNECT, java.default_cache())
    path = f"{libs}/*:{java._pyspark_jar('avro-1*.jar')}"
    answer = subprocess.run(
        [java.find_java(), *java.QUICK_JVM.split(), "-Xmx256m", "-cp", path, str(_SOURCE)],
        input="\n".join(questions) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = answer.stdout.splitlines()
    assert answer.returncode == 0, answer.stderr
    assert len(lines) == len(questions), answer.stderr
    return [(line.startswith("ok "), line[3:]) for line in lines]
