"""Build both images by a real builder on stand-ins for their bases, and unpack them as root file systems."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyfold.errors import KeyfoldError
from tests.support.chroot import Container
from tests.support.dockerfile import IMAGES, dockerfile
from tests.support.images.bases import Buildah, make_bases

ROOT = IMAGES.parents[1]
_HOSTS = (Path("/etc/hosts"), Path("/etc/resolv.conf"))
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class Image:
    """`root` is the file system, the rest what the recipe says of how it is run."""

    name: str
    root: Path
    user: str
    environment: Mapping[str, str]
    working_directory: str
    entrypoint: tuple[str, ...]
    labels: Mapping[str, str]

    def container(
        self, environment: Mapping[str, str], mounts: Mapping[str, Path], scratch: Mapping[str, str] | None = None
    ) -> Container:
        """Read-only but for /tmp, or for `scratch`; with this machine's names of hosts."""
        given = {} if scratch is None else {"scratch": scratch}
        all_mounts = {**{str(file): file for file in _HOSTS}, **mounts}
        return Container(
            self.root, self.user, {**self.environment, **environment}, self.working_directory, all_mounts, **given
        )


def check_tools() -> None:
    """Raise `KeyfoldError` where something is missing that cannot be made."""
    if os.geteuid() != 0:
        raise KeyfoldError("root is needed to mount and to chroot", hint="sudo make images-try")
    missing = [
        name for name in ("debootstrap", "buildah", "unshare", "setpriv", "chroot") if shutil.which(name) is None
    ]
    if missing:
        raise KeyfoldError(f"{', '.join(missing)} not found", hint="apt-get install buildah debootstrap util-linux")


def build_image(name: str, folder: Path) -> str:
    """Build one image into the storage in `folder`, and say its tag; the bases are made once."""
    buildah = Buildah(folder)
    options = _own_index()
    make_bases(buildah, folder, options)
    tag = f"localhost/keyfold-{name}:try"
    buildah.build(tag, dockerfile(name), ROOT, options, log=folder / f"{name}.log")
    return tag


def build(name: str, folder: Path) -> Image:
    """Build one image and unpack it below `folder`."""
    tag = build_image(name, folder)
    buildah = Buildah(folder)
    root = _unpacked(buildah, tag, f"keyfold-{name}-try")
    inspected: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", tag))
    for place in ("proc", "dev", "tmp", "etc/keyfold"):
        (root / place).mkdir(parents=True, exist_ok=True)
    for file in _HOSTS:
        (root / file.relative_to("/")).touch()
    config = inspected["OCIv1"]["config"]
    return Image(
        name,
        root,
        config["User"],
        dict(pair.split("=", 1) for pair in config["Env"]),
        config["WorkingDir"],
        tuple(config["Entrypoint"]),
        config["Labels"],
    )


def _unpacked(buildah: Buildah, tag: str, container: str) -> Path:
    """The image as a folder, which stays until the next time: with the driver vfs it is nothing but a folder."""
    with contextlib.suppress(subprocess.CalledProcessError):
        buildah("rm", container)
    buildah("from", "--pull-never", "--name", container, tag)
    return Path(buildah("mount", container))


def _own_index() -> list[str]:
    """This machine's package index and certificates for the builder's pip; neither gets into the image."""
    options = []
    for conf in (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf"):
        if conf.is_file():
            options = ["--secret", f"id=pip.conf,src={conf}"]
    if _AUTHORITIES.is_file():
        options += ["--volume", f"{_AUTHORITIES}:{_AUTHORITIES}:ro"]
    return options
