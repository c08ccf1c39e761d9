"""Stand-ins for the bases of the images, made of Debian's packages: where no registry can be asked for the real ones.

    python:3.11.x-slim-bookworm   debootstrap's smallest Debian 12 with Debian's Python 3.11, and pip. The real one has
                                  the same Debian, and a Python of its own under /usr/local
    eclipse-temurin:17-jre        Debian's openjdk-17-jre-headless, copied to where Temurin's image has it

So what is tried is every step of our own, on the same Debian and the same minor versions; not the real bases' files.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.dockerfile import dockerfile, stages

PACKAGES = ("ca-certificates", "netbase", "tzdata", "python3", "python3-pip", "python3-venv")
# Debian's pip cannot take itself away, as the real base's can: it makes room for one that can.
_PYTHON = """
FROM scratch
ADD base.tar /
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \\
    rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED \\
    && for name in python python3 python3.11; do ln -s /usr/bin/python3.11 /usr/local/bin/$name; done \\
    && python3 -m pip install --quiet --ignore-installed --root-user-action=ignore pip setuptools wheel \\
    && dpkg --purge --force-depends python3-pip python3-setuptools python3-wheel
CMD ["python3"]
"""
_JAVA = """
FROM {python}
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \\
    && mkdir /opt/java && cp --recursive --dereference /usr/lib/jvm/java-17-openjdk-* /opt/java/openjdk
"""


class Buildah:
    """Debian's builder of images, which needs no daemon, with a storage of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._words = [
            "buildah",
            *("--root", str(folder / "storage")),
            *("--runroot", str(folder / "run")),
            *("--storage-driver", "vfs"),
        ]

    def __call__(self, *words: str, log: Path | None = None) -> str:
        """What it printed. Raises `CalledProcessError`; with `log` all of it is written there instead."""
        command = [*self._words, *words]
        if log is None:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        with log.open("w") as out:
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True)
        return ""

    def has(self, image: str) -> bool:
        command = [*self._words, "inspect", "--type", "image", image]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def build(self, tag: str, recipe: Path, context: Path, options: Sequence[str] = (), *, log: Path) -> None:
        self(
            "build",
            *("--isolation", "chroot", "--pull-never", "--layers=false", "--network", "host"),
            *("--file", str(recipe), "--tag", tag),
            *options,
            str(context),
            log=log,
        )


def base_names() -> tuple[str, str]:
    """The names of Python's and Java's base, as the compactor's recipe has them."""
    found = {stage.base for stage in stages(dockerfile("compactor").read_text())}
    (python,) = [base for base in found if "/python:" in base]
    (java,) = [base for base in found if "temurin" in base]
    return python, java


def make_bases(buildah: Buildah, folder: Path, options: Sequence[str]) -> None:
    """Have both stand-ins in the storage, under the names of what they stand for; `options` are the builder's."""
    python, java = base_names()
    context = folder / "bases"
    context.mkdir(exist_ok=True)
    if not (context / "base.tar").exists():
        _debian(folder / "debian", context / "base.tar", folder / "debootstrap.log")
    for name, recipe in ((python, _PYTHON), (java, _JAVA.format(python=python))):
        if not buildah.has(name):
            (context / "Containerfile").write_text(recipe)
            buildah.build(name, context / "Containerfile", context, options, log=folder / "bases.log")


def _debian(root: Path, archive: Path, log: Path) -> None:
    """The smallest Debian 12 with our packages, as one file that is there when it is whole."""
    shutil.rmtree(root, ignore_errors=True)
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(root)]
    with log.open("w") as out:
        subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, check=True)
    part = archive.with_suffix(".part")
    subprocess.run(["tar", "--create", "--file", part, "--directory", root, "."], check=True)
    part.rename(archive)
    shutil.rmtree(root)
