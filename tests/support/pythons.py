"""`make test-python`: the built wheel in every Python that it names as supported and that this machine has.

    bare    the wheel and the dependencies of the library: what `tests.support.bare_install` says of it
    full    the wheel with the extra `sink` and the group `test`: unit tests without Kafka and Spark; not in the
            Python of .venv, in which `make test` runs them all

Each Python has two virtual environments in .cache/pythons, which are made again if their pinned packages change. The
tests run on a copy of the repository without the packages, so that they import the wheel. Pythons are found on PATH and
among those of pyenv; `--python PATH` names another. Those that are missing are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.support.bare_install import Scene, findings
from tests.support.moto import LocalS3Process
from tests.support.root import ROOT

FOLDER: Final = ROOT / ".cache" / "pythons"
RUNNING: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
CHOICE: Final = (
    *("tests/golden", "tests/property/test_segment_properties.py"),
    *("tests/unit/formats", "tests/unit/log", "tests/unit/metrics", "tests/unit/runtime"),
)
"""What runs in the full environment."""
PARALLEL: Final = 2
"""As many Pythons are tried at a time: an installation keeps one processor busy."""
COPIED: Final = ("docs", "infra", "tests", "schemas", "pyproject.toml", "README.md", "CHANGELOG.md", "constraints.txt")
# Python compiles what the tests import; to compile all of every package takes as long as to unpack it.
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-build-isolation", "--no-compile")


def supported() -> list[str]:
    """Return the minor versions that the classifiers of the package name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[1] for line in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", line))]


def found_pythons(named: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return an interpreter for each supported version that is there: named ones first, then PATH, then pyenv's."""
    pyenv = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found: dict[str, str] = {}
    for version in supported():
        on_path = shutil.which(f"python{version}", path=environ.get("PATH"))
        own = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)]
        for candidate in (*named, *([on_path] if on_path else []), *own):
            if version_of(candidate) == version:
                found[version] = candidate
                break
    return found


def version_of(python: str) -> str:
    """Return the minor version of an interpreter that can make virtual environments; empty for any other program."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def environment(python: str, version: str, name: str, requirements: str, wheel: Path) -> Path:
    """Return the interpreter of an environment with the pinned packages and the wheel. Keep it for the next run."""
    file = ROOT / "requirements" / f"{requirements}.txt"
    folder = FOLDER / version / name
    stamp, digest = folder / ".pinned", hashlib.sha256(python.encode() + file.read_bytes()).hexdigest()
    own = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([own, *PIP, "--require-hashes", "--only-binary", ":all:", "-r", file], check=True)
        stamp.write_text(digest)
    subprocess.run([own, *PIP, "--no-deps", "--force-reinstall", wheel], check=True)
    return own


def built_wheel() -> Path:
    """Build the wheel."""
    folder = FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def copied_tree() -> Path:
    """Copy the repository without its packages."""
    tree = FOLDER / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "keyfold_schemas"))
        else:
            shutil.copy2(source, tree)
    return tree


def tests_passed(python: Path, tree: Path, arguments: Sequence[str]) -> bool:
    """Run the choice of tests against the installed wheel, and print what pytest prints at its end."""
    where = "import keyfold, pathlib, sys; sys.exit(pathlib.Path.cwd() in pathlib.Path(keyfold.__file__).parents)"
    subprocess.run([python, "-c", where], cwd=tree, check=True)
    marks = "not kafka and not spark and not any_spark and not full and not real"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", marks, "--tier", "test", "--share", "1/8"]
    done = subprocess.run(
        [python, *words, *CHOICE, *arguments], cwd=tree, check=False, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout if done.returncode else done.stdout.splitlines()[-1], flush=True)
    return done.returncode == 0


def checked(version: str, python: str, wheel: Path, tree: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the wheel in one Python."""
    bare = environment(python, version, "bare", "base", wheel)
    with LocalS3Process() as store:
        scene = Scene.make(store, f"bare-{uuid4().hex[:12]}", FOLDER / version / "scene")
        shutil.rmtree(scene.folder / "parquet", ignore_errors=True)
        yield from findings(bare, scene)
    if version == RUNNING:
        return
    if not tests_passed(environment(python, version, "full", "test", wheel), tree, arguments):
        yield "tests failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="also look at this interpreter")
    parser.add_argument("pytest", nargs="*", help="more arguments of pytest")
    options = parser.parse_args()
    pythons = found_pythons(options.python, os.environ)
    wheel, tree = built_wheel(), copied_tree()
    for version in supported():
        print(f"Python {version}: {pythons.get(version, 'not on this machine, not tested')}", flush=True)

    def holds(version: str) -> bool:
        begun = time.monotonic()
        wrong = list(checked(version, pythons[version], wheel, tree, options.pytest))
        named = [f"Python {version}: {line}" for line in wrong]
        print("\n".join(named) or f"Python {version}: holds, {time.monotonic() - begun:.0f} s", flush=True)
        return not wrong

    with ThreadPoolExecutor(PARALLEL) as pool:
        results = list(pool.map(holds, pythons))
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
