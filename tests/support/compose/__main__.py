"""`make compose-try`: run the stack for a laptop as a whole without docker, by its README's commands.

Docker's Compose, podman as its engine, keyfold's images built as `make images-try` builds them, and stand-ins for the
images of others. Prints a line for each thing that holds, and ends with exit code 1 at the first that does not.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from functools import partial
from typing import Any, Final

import yaml

from keyfold.errors import KeyfoldError
from keyfold_demo.java import default_cache
from tests.support import go_program
from tests.support.compose.engine import Engine, check_engine
from tests.support.compose.stand_ins import make_stand_ins
from tests.support.compose.story import FOLDER, tell
from tests.support.images.__main__ import timed
from tests.support.images.bases import Buildah
from tests.support.images.build import build_image, check_tools

OVERRIDE: Final = "tests/support/compose/override.yaml"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="run the stack for a laptop as a whole")
    parser.add_argument("--keep-images", action="store_true", help="run keyfold's images as they were built last")
    keep_images: bool = parser.parse_args(arguments).keep_images
    folder = default_cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    stack: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    engine = None
    try:
        check_tools()
        check_engine()
        check_ports(stack)
        if go_program.main(["docker_compose", "prometheus", "versitygw"]) != 0:
            return 1
        buildah = Buildah(folder)
        for name in ("sink", "compactor"):
            if not keep_images or not buildah.has(f"localhost/keyfold-{name}:try"):
                timed(f"build the {name}'s image", partial(build_image, name, folder))
            buildah("tag", f"localhost/keyfold-{name}:try", whole_name(stack["services"][name]["image"]))
        images = {name: whole_name(service["image"]) for name, service in stack["services"].items()}
        timed("stand-ins for the images of others", lambda: make_stand_ins(buildah, images, folder / "stand-ins"))
        engine = Engine(folder, stack["name"], [FOLDER / "compose.yaml", FOLDER.parents[1] / OVERRIDE])
        with engine:
            timed("taken over", lambda: engine.take(sorted(set(images.values()) - {images["grafana"]})))
            timed("the whole stack", lambda: tell(engine))
    except (KeyfoldError, AssertionError, subprocess.CalledProcessError) as error:
        said = f", podman's and the containers' in {engine.log.parent}" if engine else ""
        print(f"FAILED: {error}\nlogs of the builder are in {folder}{said}", file=sys.stderr)
        return 1
    return 0


def whole_name(image: str) -> str:
    """As an engine takes a name without a registry."""
    return image if "/" in image else f"docker.io/library/{image}"


def check_ports(stack: dict[str, Any]) -> None:
    """Raise `KeyfoldError` if a port that the stack publishes is in use."""
    for service in stack["services"].values():
        for published in service.get("ports", []):
            host, port, _ = published.split(":")
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    raise KeyfoldError(f"somebody listens on {host}:{port}", hint="end it: the stack needs that port")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
