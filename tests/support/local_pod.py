"""A rendered pod as a local process: command, arguments, environment, files, ports and probes as they are written.

Changed is only what a cluster would give: addresses and ports, the folders of mounts and of the image, the values of
Secrets that the chart does not make, the pod's name and address. What a kernel or a container runtime enforces (users,
a read-only root, memory) is not.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from keyfold_demo.children import free_port
from tests.support.helm import one
from tests.support.proof import wait_for
from tests.support.rendered import Object, Pod, pods
from tests.support.spark_cluster import spark_home

_BIN: Final = Path(sys.executable).parent
IMAGE_FOLDERS: Final = {
    "/opt/keyfold/bin": str(_BIN),
    "/opt/keyfold/keyfold_compact.py": str(
        Path(__file__).parents[2] / "compactor" / "keyfold_compactor" / "__main__.py"
    ),
    "/opt/spark": str(spark_home()),
}
"""Where this machine has what the compactor's image has."""
_OF_OTHER_PODS: Final = frozenset({"executor.yaml"})
"""Files that speak of folders in pods which are made of them."""
POD_IP: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PodEnvironment:
    """What a cluster gives. `addresses` replace those in configuration files and arguments, `environment` is what
    identity and the image add."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe got; status 0: no answer in time."""

    status: int
    body: Mapping[str, Any]

    @property
    def is_good(self) -> bool:
        """As a kubelet sees it."""
        return 200 <= self.status < 400


def on_this_machine(text: str, mounts: Mapping[str, str]) -> str:
    """With folders of this machine, where a mount or the image has another."""
    folders = {**mounts, **IMAGE_FOLDERS}
    paths = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.-])(?:{paths})(?=[/\",]|$)", lambda found: folders[found[0]], text)


def _with_variables(word: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` is the value of a variable of the container, in what it is called with."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), word)


class LocalPod:
    """The first container of a rendered pod. `log_path` has what it says on both outputs."""

    def __init__(
        self, objects: Sequence[Object], owner: str, folder: Path, environment: PodEnvironment, *, name: str
    ) -> None:
        self.pod: Pod = next(pod for pod in pods(objects) if pod.owner == owner)
        self.container = self.pod.containers[0]
        self.folder = folder / name
        self.log_path = self.folder / "log"
        self.ports = {port["containerPort"]: free_port() for port in self.container["ports"]}
        self._named = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self._name = name
        self._objects = objects
        self._given = environment
        self._process: subprocess.Popen[bytes] | None = None
        mounts: Sequence[Object] = self.container.get("volumeMounts", ())
        self._mounts = {mount["mountPath"]: str(self.folder / mount["name"]) for mount in mounts}
        self.folder.mkdir(parents=True, exist_ok=True)
        for mount in mounts:
            self._fill(mount["name"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    # What is written

    @property
    def command(self) -> list[str]:
        """The words that are run. Where none are given the image's entrypoint runs the arguments as they are."""
        words = (*self.container.get("command", ()), *self.container.get("args", ()))
        environment = self.environment
        return [self._rewritten(_with_variables(word, environment)) for word in words]

    @property
    def environment(self) -> dict[str, str]:
        """All of it: nothing else comes in from this machine but where programs and Java are."""
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        path = os.pathsep.join((str(_BIN), os.environ.get("PATH", os.defpath)))
        found = {"PATH": path, **java, **self._given.environment}
        for variable in self.container.get("env", ()):
            found[variable["name"]] = self._here(self._value(variable))
        return found

    @property
    def grace_s(self) -> float:
        """From SIGTERM to SIGKILL."""
        return float(self.pod.spec["terminationGracePeriodSeconds"])

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]
        if "fieldRef" in source:
            return {"metadata.name": self._name, "status.podIP": POD_IP}[source["fieldRef"]["fieldPath"]]
        return self._secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]

    def _secret(self, name: str) -> Mapping[str, str]:
        if name in self._given.secrets:
            return self._given.secrets[name]
        data: Mapping[str, str] = one(self._objects, "Secret", name)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _fill(self, name: str) -> None:
        """Make a volume."""
        volume = next(each for each in self.pod.spec["volumes"] if each["name"] == name)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        files: Mapping[str, str] = {}
        if "configMap" in volume:
            data = one(self._objects, "ConfigMap", volume["configMap"]["name"])["data"]
            files = {key: text if key in _OF_OTHER_PODS else self._rewritten(text) for key, text in data.items()}
        elif "secret" in volume:
            files = self._secret(volume["secret"]["secretName"])
        else:
            assert "emptyDir" in volume, volume
        for key, text in files.items():
            (folder / key).write_text(text)

    def _rewritten(self, text: str) -> str:
        """A file or a word with addresses and ports of this machine; nothing else in it is changed."""
        text = self._moved(text)
        for port, here_port in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(here_port), text)
        return self._here(text).replace("0.0.0.0", POD_IP)  # noqa: S104 - it is replaced

    def _moved(self, text: str) -> str:
        for address, here in self._given.addresses.items():
            text = text.replace(address, here)
        return text

    def _here(self, text: str) -> str:
        return on_this_machine(text, self._mounts)

    # What it does

    def start(self) -> None:
        """Run it; what another run has said stays in the log."""
        program, *arguments = self.command
        found = shutil.which(program, path=self.environment["PATH"])
        assert found is not None, program
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [found, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """All of it."""
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of the first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def probe(self, kind: str) -> Answer:
        """Ask as a kubelet does: `startup`, `liveness` or `readiness`."""
        probe = self.container[f"{kind}Probe"]
        port = self.ports[self._named[probe["httpGet"]["port"]]]
        connection = http.client.HTTPConnection(POD_IP, port, timeout=float(probe["timeoutSeconds"]))
        try:
            connection.request("GET", probe["httpGet"]["path"])
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()))
        except OSError:
            return Answer(0, {})
        finally:
            connection.close()

    def starts(self) -> None:
        """Within what the startup probe allows."""
        probe = self.container["startupProbe"]
        allowed_s = float(probe["periodSeconds"] * probe["failureThreshold"])
        wait_for(lambda: self.exit_code is not None or self.probe("startup").is_good, allowed_s, self.said[-2000:])
        assert self.exit_code is None, self.said[-3000:]

    def until(self, kind: str, *, is_good: bool, words: str = "", within_s: float = 120) -> Answer:
        """Wait for an answer of that sort, with these words in its message."""
        answer = Answer(0, {})

        def has_come() -> bool:
            nonlocal answer
            assert self.exit_code is None, self.said[-3000:]
            answer = self.probe(kind)
            return answer.status != 0 and answer.is_good is is_good and words in answer.body["message"]

        deadline_s = time.monotonic() + within_s
        while not has_come():
            assert time.monotonic() < deadline_s, f"{kind}: {answer}\n{self.said[-3000:]}"
            time.sleep(0.2)
        return answer

    def ends(self) -> int:
        """SIGTERM to the first process, as a pod gets it; its exit code. Fails where it needs longer than it has."""
        self.told_to_end()
        return self.ended()

    def told_to_end(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()

    def ended(self) -> int:
        """The exit code of a container that was asked to end."""
        assert self._process is not None
        try:
            return self._process.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {self.grace_s} s:\n{self.said[-3000:]}") from None


def verified(environment: Mapping[str, str], arguments: str, of: str = "log") -> None:
    """`keyfold log verify` of a URL and a topic says that the log is whole; likewise `keyfold table verify`."""
    answer = subprocess.run(
        [sys.executable, "-c", "from keyfold.cli import main; main()", of, "verify", *arguments.split()],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
