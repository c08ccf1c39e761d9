"""A kubelet for the executors of Spark: it sees to it that the pods which the API server has run here as processes.

    with Kubelet(kube, namespace, folder, environment={"AWS_ACCESS_KEY_ID": ...}) as kubelet:
        ...                                         Spark makes pods; each is bound to this node, started, said to run
        kubelet.running[0].signal(signal.SIGKILL)   its process dies; the pod is said to have failed, with its exit code

A container is what the compactor's image would start: its entrypoint with the pod's arguments, the image's variables
and then the pod's, in the image's working directory. Paths of mounts and of the image are those of this machine, and
no tini is here to collect what a process leaves behind. A pod that is deleted is told to end, and goes from the server
when its process has gone, as with a real one. Only pods with `spark-role=executor` are looked after.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from keyfold_demo.java import find_java
from tests.support.kube_apiserver import KubeApiserver
from tests.support.local_pod import IMAGE_FOLDERS, POD_IP, on_this_machine
from tests.support.rendered import Object

NODE: Final = "this-machine"
_IMAGE: Final = Path(__file__).parents[2] / "infra" / "images" / "compactor"
_TINI: Final = "/usr/bin/tini -s -- "
_WORK_DIR: Final = "/opt/spark/work-dir"
_WINDOW_S: Final = 1
"""How long it listens for changes before it looks at its processes again."""


def image_environment() -> dict[str, str]:
    """What the compactor's Dockerfile sets, for this machine."""
    java_home = Path(find_java()).resolve().parents[1]
    python = f"{IMAGE_FOLDERS['/opt/keyfold/bin']}/python"
    return {
        "PATH": f"{IMAGE_FOLDERS['/opt/keyfold/bin']}:{java_home}/bin:{os.defpath}",
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": IMAGE_FOLDERS["/opt/spark"],
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(slots=True)
class Ran:
    """One pod that was started here. `said` is what its process wrote; `exit_code` None: it runs."""

    made: Object
    """As the one who wanted it made it, and the server's admission changed it."""
    process: subprocess.Popen[bytes]
    log_path: Path
    told_to_end_at: float | None = None
    is_over: bool = False

    @property
    def name(self) -> str:
        """The pod's."""
        return str(self.made["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.made["metadata"]["uid"])

    @property
    def exit_code(self) -> int | None:
        """As a shell and a kubelet give it: 137 after SIGKILL."""
        code = self.process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    @property
    def said(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """To the container's first process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self) -> None:
        """End what is left of the container, as the end of its first process does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Kubelet:
    """One node. `ran` are all pods that were started, in their order."""

    def __init__(self, kube: KubeApiserver, namespace: str, folder: Path, *, environment: Mapping[str, str]) -> None:
        self.ran: list[Ran] = []
        self._kube = kube
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._folder = folder
        self._given = environment
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._entrypoint = _entrypoint(self._folder)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for ran in self.ran:
            ran.end()
        if self._failure is not None and error is None:
            raise self._failure

    # What tests ask

    def check(self) -> None:
        """Raise what has ended this node, if something has."""
        if self._failure is not None:
            raise self._failure

    @property
    def running(self) -> list[Ran]:
        """Those whose processes run."""
        self.check()
        return [ran for ran in self.ran if ran.exit_code is None]

    def pods(self) -> list[Object]:
        """The executors that are on the server."""
        return self._listed()["items"]  # type: ignore[no-any-return]  # JSON of the API

    # What it does

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._look()
        except BaseException as error:  # noqa: BLE001 - raised again where the test can see it
            self._failure = error

    def _look(self) -> None:
        """All pods as they are, then their changes for a moment."""
        listed = self._listed()
        there = {each["metadata"]["uid"] for each in listed["items"]}
        for ran in self.ran:
            if not ran.is_over and ran.uid not in there:  # deleted without being asked
                ran.end()
                ran.is_over = True
        for each in listed["items"]:
            self._see(each)
        with contextlib.suppress(TimeoutError, http.client.HTTPException):
            for change in self._kube.watch(self._path, listed["metadata"]["resourceVersion"], _WINDOW_S):
                if change["type"] in {"ADDED", "MODIFIED"}:
                    self._see(change["object"])

    def _listed(self) -> Object:
        answer = self._kube.get(f"{self._path}?labelSelector=spark-role%3Dexecutor")
        assert answer.is_good, answer
        return answer.body

    def _see(self, pod: Object) -> None:
        """Do what is to be done next for a pod. Whatever is out of date is seen again as it is now."""
        metadata = pod["metadata"]
        if metadata.get("labels", {}).get("spark-role") != "executor":
            return
        ran = next((each for each in self.ran if each.uid == metadata["uid"]), None)
        if ran is None:
            if "deletionTimestamp" not in metadata and pod["status"]["phase"] == "Pending":
                self._start(pod)
            return
        if "deletionTimestamp" in metadata:
            self._end(ran, float(metadata.get("deletionGracePeriodSeconds", 0)))
        elif ran.exit_code is not None and pod["status"]["phase"] == "Running":
            ran.end()
            self._tell(ran)

    def _start(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        bound = self._kube.post(f"{self._path}/{name}/binding", binding)
        if bound.status in {404, 409}:  # it has been deleted meanwhile
            return
        assert bound.is_good, bound
        ran = self._started(pod)
        self.ran.append(ran)
        self._tell(ran)

    def _started(self, pod: Object) -> Ran:
        (container,) = pod["spec"]["containers"]
        assert "command" not in container, "the image's entrypoint runs"
        folder = self._folder / pod["metadata"]["uid"]
        mounts = _volumes(pod, container, folder)
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["bash", str(self._entrypoint), *container["args"]],
                cwd=mounts[_WORK_DIR],
                env=self._environment(pod, container, mounts),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Ran(pod, process, log_path)

    def _environment(self, pod: Object, container: Object, mounts: Mapping[str, str]) -> dict[str, str]:
        found = {**image_environment(), **self._given}
        fields = {"status.podIP": POD_IP, "metadata.name": pod["metadata"]["name"]}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            value = variable.get("value", "") if source is None else fields[source["fieldRef"]["fieldPath"]]
            found[variable["name"]] = on_this_machine(value, mounts)
        return found

    def _end(self, ran: Ran, grace_s: float) -> None:
        """SIGTERM once, SIGKILL when its time is over; the pod goes when its process has gone."""
        if ran.told_to_end_at is None:
            ran.told_to_end_at = time.monotonic()
            ran.signal(signal.SIGTERM)
        if ran.exit_code is None and time.monotonic() < ran.told_to_end_at + grace_s:
            return
        ran.end()
        if not ran.is_over:
            self._tell(ran)
            gone = self._kube.delete_at_once(f"{self._path}/{ran.name}", ran.uid)
            assert gone.is_good or gone.status in {404, 409}, gone
            ran.is_over = True

    def _tell(self, ran: Ran) -> None:
        """The pod's status, as its process is."""
        code, now = ran.exit_code, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state: Object
        if code is None:
            phase, state = "Running", {"running": {"startedAt": now}}
        else:
            phase = "Failed" if code else "Succeeded"
            reason = "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}
        (container,) = ran.made["spec"]["containers"]
        status = running_status(container, phase=phase, state=state, is_ready=code is None)
        change = {"metadata": {"uid": ran.uid}, "status": status}
        told = self._kube.patch(f"{self._path}/{ran.name}/status", change)
        assert told.is_good or told.status in {404, 409}, told


def running_status(container: Object, *, phase: str, state: Object, is_ready: bool) -> Object:
    """What a kubelet says of a pod with one container."""
    conditions = [
        {"type": kind, "status": "True" if is_ready or kind == "PodScheduled" else "False"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    of_container = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": is_ready,
        "restartCount": 0,
        "started": is_ready,
        "state": state,
    }
    return {
        "phase": phase,
        "podIP": POD_IP,
        "podIPs": [{"ip": POD_IP}],
        "conditions": conditions,
        "containerStatuses": [of_container],
    }


def _entrypoint(folder: Path) -> Path:
    """The image's own, without tini."""
    text = (_IMAGE / "entrypoint.sh").read_text()
    assert text.count(_TINI) == 1
    path = folder / "entrypoint.sh"
    path.write_text(text.replace(_TINI, ""))
    return path


def _volumes(pod: Object, container: Object, folder: Path) -> dict[str, str]:
    """Make them; where each is mounted, and its folder here."""
    kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["spec"].get("volumes", ())}
    found = {}
    for mount in container.get("volumeMounts", ()):
        assert kinds[mount["name"]] == {"emptyDir"}, f"a volume of a kind that is not made here: {mount}"
        place = folder / mount["name"]
        place.mkdir(parents=True, exist_ok=True)
        found[mount["mountPath"]] = str(place)
    return found
