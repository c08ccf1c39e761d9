"""A missing or old Java is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfold_demo.java import JavaMissing, default_cache, find_java
from tests.support.root import ROOT


def install(folder: Path, version_line: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    "line", ['openjdk version "17.0.15" 2025-04-15', 'java version "25" 2025-09-16 LTS', 'openjdk version "21-ea" 2023']
)
def test_a_new_enough_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    java = install(tmp_path, line)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{java.parent}:/bin:/usr/bin")
    assert find_java() == str(java)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_202"', "is Java 8"),
        ("The operation could not be completed. Unable to locate a Java Runtime.", "does not report its version"),
    ],
)
def test_an_old_or_broken_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str) -> None:
    install(tmp_path, line)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=says) as caught:
        find_java()
    assert "\n" not in str(caught.value)
    assert "JDK 17" in str(caught.value)


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="which has no bin/java"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on PATH"):
        find_java()


def test_the_cache_is_in_the_configured_folder_or_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYFOLD_CACHE", raising=False)
    assert default_cache() == ROOT / ".cache"
    monkeypatch.setenv("KEYFOLD_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
