"""An engine for Compose without docker: podman's service, which speaks Docker's API on a socket of its own.

Docker's own Compose talks to it by `DOCKER_HOST`. Containers have podman's bridge with its names (netavark and
aardvark-dns), and their ports are published on 127.0.0.1. Images are taken over from where `tests.support.images`
builds them, as folders, into layers that containers share. Two things are done here because podman does not: a
container's health check is run every few seconds, which podman leaves to systemd; and limits of processes are the
machine's own, as podman's are above what some machines let it ask for.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, end
from tests.support import docker_compose

_START_S: Final = 60
_HEALTH_INTERVAL_S: Final = 5
_COMMAND_MAX_S: Final = 1200
TOOLS: Final = ("podman", "runc", "conmon", "iptables")


def check_engine() -> None:
    """Raise `KeyfoldError` where something is missing that cannot be made."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    missing += [name for name in ("netavark", "aardvark-dns") if not Path("/usr/lib/podman", name).exists()]
    if missing:
        raise KeyfoldError(
            f"{', '.join(missing)} not found", hint="apt-get install podman runc iptables netavark aardvark-dns"
        )


class Engine:
    """Podman on a socket, and Compose for one project of it. What the project leaves behind is removed at the end."""

    def __init__(self, folder: Path, project: str, files: Sequence[Path]) -> None:
        """`folder` is that of the images; what they are taken over into is kept there, too."""
        self._folder = folder
        self._project = project
        self._work = Path(tempfile.mkdtemp(prefix="keyfold-compose-"))
        self._socket = self._work / "podman.sock"
        self.log = self._work / "podman.log"
        """What podman said; beside it `containers.log`, and both stay where something failed."""
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(self._work / "containers.conf"),
            "DISABLE_HC_SYSTEMD": "true",
            "DOCKER_HOST": f"unix://{self._socket}",
            "COMPOSE_FILE": ":".join(str(file) for file in files),
            "COMPOSE_ANSI": "never",
        }
        self._podman = [
            "podman",
            *("--root", str(folder / "engine/storage"), "--runroot", str(folder / "engine/run")),
            *("--storage-driver", "overlay"),
            *("--network-config-dir", str(self._work / "networks")),
        ]
        self._service: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._health = threading.Thread(target=self._check_health, daemon=True)

    def __enter__(self) -> Self:
        (self._work / "networks").mkdir()
        (self._work / "containers.conf").write_text(_configuration())
        with self.log.open("wb") as out:
            self._service = subprocess.Popen(
                [*death_with_parent(), *self._podman, "system", "service", "--time=0", f"unix://{self._socket}"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self._socket.exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                end(self._service, retry_timeout_s=5)
                self._service = None
                raise KeyfoldError(f"podman's service did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        self._health.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._service is not None:
            if error is not None:
                (self._work / "containers.log").write_text(self.compose("logs", "--no-color", may_fail=True))
            self.compose("--profile", "*", "down", "--volumes", "--timeout", "20", may_fail=True)
            self.podman("volume", "prune", "--force")
            self._ended.set()
            if self._health.is_alive():
                self._health.join()
            end(self._service, retry_timeout_s=10)
            self._service = None
        if error is None:
            shutil.rmtree(self._work, ignore_errors=True)

    def take(self, images: Iterable[str]) -> None:
        """Have these images, as the builder has them; what is the same already is not copied again."""
        built = f"[vfs@{self._folder}/storage+{self._folder}/run]"
        for image in images:
            self.podman("pull", "--quiet", f"containers-storage:{built}{image}")

    def compose(self, *words: str, may_fail: bool = False) -> str:
        """What `docker compose WORDS` printed. Raises `AssertionError` with the end of what it said where it fails."""
        answer = subprocess.run(
            [str(docker_compose.PROGRAM.binary()), *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_MAX_S,
        )
        said = f"docker compose {shlex.join(words)}: {answer.stdout[-2000:]}{answer.stderr[-4000:]}"
        assert may_fail or answer.returncode == 0, said
        return answer.stdout

    def podman(self, *words: str) -> str:
        answer = subprocess.run(
            [*self._podman, *words], env=self._environment, capture_output=True, text=True, check=True
        )
        return answer.stdout

    def state(self, service: str) -> dict[str, Any]:
        """What the engine says of a service's container."""
        (found,) = json.loads(self.podman("inspect", "--type", "container", f"{self._project}-{service}-1"))
        state: dict[str, Any] = found["State"]
        return state

    def remains(self) -> list[str]:
        """Names of containers, volumes and networks: all that this engine has is the project's, but for one network.

        Volumes without a name are left out. Compose takes podman's networks for others than it made, and so creates
        again what `run` needs; podman does not give a new container the nameless volumes of the old one.
        """
        containers = self.podman("ps", "--all", "--format", "{{.Names}}")
        volumes = self.podman("volume", "ls", "--filter", "label=com.docker.compose.project", "--format", "{{.Name}}")
        networks = self.podman("network", "ls", "--format", "{{.Name}}")
        return [*containers.split(), *volumes.split(), *(name for name in networks.split() if name != "podman")]

    def _check_health(self) -> None:
        """What a timer of systemd does where there is one."""
        label = f"label=com.docker.compose.project={self._project}"
        while not self._ended.wait(_HEALTH_INTERVAL_S):
            words = ["ps", "--filter", label, "--filter", "status=running", "--format", "{{.Names}}"]
            listed = subprocess.run(
                [*self._podman, *words], env=self._environment, capture_output=True, text=True, check=False
            )
            for name in listed.stdout.split():
                if name.endswith("-kafka-1"):
                    check = [*self._podman, "healthcheck", "run", name]
                    subprocess.run(check, env=self._environment, capture_output=True, check=False)


def _configuration() -> str:
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    most = int(Path("/proc/sys/kernel/pid_max").read_text())  # to which podman lowers its own
    processes = most if processes == resource.RLIM_INFINITY else min(processes, most)
    limits = [f"nofile={files}:{files}", f"nproc={processes}:{processes}"]
    return f"""
[containers]
default_ulimits = {json.dumps(limits)}
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
exit_command_delay = 5
runtime = "runc"
[network]
network_backend = "netavark"
"""
