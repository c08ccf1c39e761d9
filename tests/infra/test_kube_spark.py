"""The compactor with Spark on Kubernetes, before a real kube-apiserver: Spark's driver asks it for executors with the
service account's own token, in a namespace that enforces the restricted Pod Security Standard, and they clean a log.

    set of values        what runs
    spark-kubernetes     the Deployment's loop: `keyfold compact run --master k8s://...`
    spark-submit-cron    a run of the CronJob: spark-submit, what driver and executors say encrypted

The driver is the rendered pod as a local process, executors are started by the tests' own kubelet with what Spark wrote
into their pods. Changed is what a cluster would give (addresses, token and certificate, credentials) and numbers that
fit a small machine. No network plugin, no scheduler and no container runtime is here, and no controller: what goes from
the server was taken away by Spark.
"""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore
from tests.support.cleaning import Sink, load, record
from tests.support.helm import VALUE_SETS, one, template
from tests.support.kube_apiserver import Deed, KubeApiserver, User
from tests.support.kubelet import NODE, Kubelet, image_environment, running_status
from tests.support.local_pod import LocalPod, PodEnvironment, verified
from tests.support.moto import LocalS3Process
from tests.support.proof import wait_for
from tests.support.spark_cluster import children, command_line

pytestmark = [pytest.mark.kube, pytest.mark.spark]

LOOP, CRON = "spark-kubernetes", "spark-submit-cron"
BUCKET = "example-log"
PARTITIONS = 4
TASK = "INFO Executor: Running task"
"""What an executor says."""
SMALL: Mapping[str, Any] = {"instances": 2, "cores": 1, "memory": "512m", "memoryOverhead": "1g"}
_GOOD = {*range(200, 300), HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.NOT_FOUND}
"""What Spark is answered: a watch is a web socket, and what it has deleted is not there when it looks again."""
OF_OTHERS = "monitoring.coreos.com/v1"
"""Monitors and rules: test_kube_chart.py has them."""


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeApiserver]:
    with KubeApiserver() as running:
        yield running


@pytest.fixture
def s3() -> Iterator[LocalS3Process]:
    with LocalS3Process() as running:
        running.create_bucket(BUCKET)
        yield running


@pytest.fixture
def store(s3: LocalS3Process) -> Iterator[ObjectStore]:
    opened = s3.location(BUCKET).open()
    yield opened
    opened.close()


def values(name: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a documented set of values, with numbers for two cores and shorter intervals."""
    found: dict[str, Any] = yaml.safe_load((VALUE_SETS / f"{name}.yaml").read_text())
    spark = found["compactor"]["spark"]
    spark["driverMemory"] = "1g"
    spark["executor"] = {**spark["executor"], **SMALL}
    found["compactor"]["config"] = {**found["compactor"]["config"], "compactor.engine": "spark", **(config or {})}
    return found


class Scene:
    """One installation in its own namespace: its objects on the server, the driver's pod, a node."""

    def __init__(self, kube: KubeApiserver, s3: LocalS3Process, folder: Path, name: str, chosen: Mapping[str, Any]):
        self.kube = kube
        self.namespace = kube.namespace(name)
        self.objects = template(chosen, namespace=self.namespace)
        for each in sorted(self.objects, key=lambda each: str(each["kind"]) != "ServiceAccount"):
            if each["apiVersion"] != OF_OTHERS:
                applied = kube.apply(each)
                assert applied.is_good, applied
        self.user = User(self.namespace, "kf-keyfold-compactor")
        self.token_path = folder / "token"
        self.token_path.write_text(kube.token(self.user))
        keys = {key: value for key, value in s3.environment.items() if key != "AWS_ENDPOINT_URL"}
        self.kubelet = Kubelet(kube, self.namespace, folder / "executors", environment=keys)
        owner = "Deployment" if chosen["compactor"]["mode"] == "loop" else "CronJob"
        addresses = {"https://kubernetes.default.svc": kube.url}
        given = PodEnvironment(addresses, environment={**image_environment(), **s3.environment, **self._mounted()})
        self.driver = LocalPod(
            self.objects, f"{owner}/kf-keyfold-compactor", folder, given, name="kf-keyfold-compactor-0"
        )
        self.driver_uid = self._create_driver("kf-keyfold-compactor-0")

    def _mounted(self) -> dict[str, str]:
        """Where Java's client for Kubernetes finds what a kubelet mounts into /var/run/secrets/kubernetes.io.

        No setting of Spark says where: it finds them as it does in a cluster.
        """
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.kube.port),
            "KUBERNETES_AUTH_SERVICEACCOUNT_TOKEN": str(self.token_path),
            "KUBERNETES_CERTS_CA_FILE": str(self.kube.certificate),
        }

    def _create_driver(self, name: str) -> str:
        """Create the driver's own pod, as its controller creates it and its kubelet reports it; return its uid."""
        spec = {**copy.deepcopy(dict(self.driver.pod.spec)), "nodeName": NODE}
        metadata = {"name": name, "namespace": self.namespace, "labels": dict(self.driver.pod.labels)}
        made = self.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        assert (made.is_good, made.warnings) == (True, ()), made
        state = {"running": {"startedAt": made.body["metadata"]["creationTimestamp"]}}
        status = running_status(self.driver.container, phase="Running", state=state, is_ready=True)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        assert self.kube.patch(path, {"status": status}).is_good
        return str(made.body["metadata"]["uid"])

    # What is asked afterwards

    def wait_for(self, what: Callable[[], bool], within_s: float, words: str) -> None:
        """Wait for a condition; fail immediately with the driver's output if the driver has ended."""

        def has_come() -> bool:
            assert self.driver.exit_code is None, self.driver.said[-5000:]
            self.kubelet.check()
            return what()

        try:
            wait_for(has_come, within_s, words)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.driver.said[-5000:]}") from None

    def are_as_wanted(self) -> None:
        """Assert account, image, missing token and owner of the executors: they are removed with the driver's pod."""
        for ran in self.kubelet.ran:
            metadata, spec = ran.made["metadata"], ran.made["spec"]
            owners = [(each["kind"], each["uid"]) for each in metadata["ownerReferences"]]
            assert owners == [("Pod", self.driver_uid)]
            assert spec["serviceAccountName"] == "kf-keyfold-executor"
            assert not [volume for volume in spec["volumes"] if "projected" in volume]
            assert spec["containers"][0]["image"] == self.driver.container["image"]

    def reported(self) -> dict[str, int]:
        """Return the reports of the driver's runs, from lines of JSON without Spark's own output."""
        lines = [line for line in self.driver.said.split("\n") if "partitions_cleaned" in line]
        reports = [json.loads(line) for line in lines]
        return {key: sum(report[key] for report in reports) for key in ("partitions_cleaned", "partitions_failed")}

    def deeds(self) -> list[Deed]:
        """Return the requests of the driver's service account to the server."""
        return self.kube.deeds(self.user)

    def unused(self) -> set[str]:
        """Return verbs of the Role that were not used. Fail if others were requested or refused."""
        (rule,) = one(self.objects, "Role", "kf-keyfold-compactor")["rules"]
        assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
        deeds = self.deeds()
        assert [deed for deed in deeds if deed.status not in _GOOD] == []
        outside = [deed for deed in deeds if deed.access.resource != "pods" or deed.access.group != ""]
        assert outside == []
        assert {deed.access.namespace for deed in deeds} == {self.namespace}
        used = {deed.access.verb for deed in deeds}
        assert used <= set(rule["verbs"])
        assert "Forbidden" not in self.driver.said
        return set(rule["verbs"]) - used


def dirty_log(store: ObjectStore, partitions: int = PARTITIONS, *, first: int = 0, value_bytes: int = 10) -> None:
    """Create partitions of `users` with twenty keys written again and again, in four segments each."""
    for partition in range(first, first + partitions):
        sink = Sink.open(store, Place("topics", "users", partition), clock=SystemClock())
        for base in range(0, 2000, 500):
            sink.append([record(at, f"key-{at % 20}", f"{at}".ljust(value_bytes)) for at in range(base, base + 500)])


def is_clean(store: ObjectStore, partitions: int = PARTITIONS) -> bool:
    """Return whether only the last record of each key is in the log."""
    manifests = [load(store, Place("topics", "users", partition)) for partition in range(partitions)]
    return all(
        each.first_dirty_offset == 2000 and sum(s.record_count for s in each.segments) == 20 for each in manifests
    )


# The tests


def test_executors_of_a_loop_clean_and_end_with_it(
    kube: KubeApiserver, s3: LocalS3Process, store: ObjectStore, tmp_path: Path
) -> None:
    dirty_log(store)
    scene = Scene(kube, s3, tmp_path, "loop", values(LOOP))
    with scene.kubelet, scene.driver:
        scene.driver.starts()
        scene.wait_for(lambda: is_clean(store), 240, "a pass")
        scene.wait_for(lambda: "partitions_cleaned" in scene.driver.said, 60, "its report")
        scene.driver.until("readiness", is_good=True)
        scene.are_as_wanted()
        assert len(scene.kubelet.running) == len(scene.kubelet.pods()) == SMALL["instances"], "the loop keeps them"
        assert scene.driver.ends() == 0, scene.driver.said[-3000:]
        wait_for(lambda: scene.kubelet.pods() == [], 60, "the executors' pods to go")
    assert scene.reported() == {"partitions_cleaned": PARTITIONS, "partitions_failed": 0}
    assert any(TASK in ran.said for ran in scene.kubelet.ran)
    assert scene.unused() == {"delete"}, "pods go all at once"
    verified(s3.environment, f"s3://{BUCKET}/topics users")


def test_a_run_of_the_cron_job_removes_its_executors(
    kube: KubeApiserver, s3: LocalS3Process, store: ObjectStore, tmp_path: Path
) -> None:
    dirty_log(store)
    scene = Scene(kube, s3, tmp_path, "cron", values(CRON))
    with scene.kubelet, scene.driver:
        wait_for(lambda: scene.driver.exit_code is not None, 300, "the end of the run")
        scene.kubelet.check()
        assert scene.driver.exit_code == 0, scene.driver.said[-5000:]
        wait_for(lambda: scene.kubelet.pods() == [], 60, "the executors' pods to go")
    assert scene.reported() == {"partitions_cleaned": PARTITIONS, "partitions_failed": 0}
    scene.are_as_wanted()
    assert is_clean(store)
    for ran in scene.kubelet.ran:
        (container,) = ran.made["spec"]["containers"]
        assert "_SPARK_AUTH_SECRET" in {variable["name"] for variable in container["env"]}
    assert any(TASK in ran.said for ran in scene.kubelet.ran)
    assert scene.unused() == {"delete"}
    verified(s3.environment, f"s3://{BUCKET}/topics users")


def test_a_dead_executor_is_replaced_and_the_pass_continues(
    kube: KubeApiserver, s3: LocalS3Process, store: ObjectStore, tmp_path: Path
) -> None:
    dirty_log(store, value_bytes=500)
    slow = {"log.cleaner.io.max.bytes.per.second": 300_000}
    scene = Scene(kube, s3, tmp_path, "lost", values(LOOP, slow))
    with scene.kubelet, scene.driver:
        scene.driver.starts()
        scene.wait_for(lambda: any(TASK in ran.said for ran in scene.kubelet.running), 240, "a task")
        lost = next(ran for ran in scene.kubelet.running if TASK in ran.said)
        assert not is_clean(store)
        lost.signal(signal.SIGKILL)
        scene.wait_for(lambda: len(scene.kubelet.ran) > SMALL["instances"], 120, "another executor")
        scene.wait_for(lambda: is_clean(store), 240, "a pass")
        scene.wait_for(lambda: "partitions_cleaned" in scene.driver.said, 60, "its report")
        assert scene.driver.ends() == 0, scene.driver.said[-3000:]
        wait_for(lambda: scene.kubelet.pods() == [], 60, "the executors' pods to go")
    assert lost.exit_code == 128 + signal.SIGKILL
    assert scene.reported() == {"partitions_cleaned": PARTITIONS, "partitions_failed": 0}
    scene.are_as_wanted()
    assert scene.unused() == set(), "the one that was lost is deleted by itself"
    verified(s3.environment, f"s3://{BUCKET}/topics users")


def test_a_dead_spark_session_in_a_loop_is_replaced_with_new_executors(
    kube: KubeApiserver, s3: LocalS3Process, store: ObjectStore, tmp_path: Path
) -> None:
    """The pod is the same: executors of the dead session stay on the server until their owner goes."""
    dirty_log(store, 1)
    scene = Scene(kube, s3, tmp_path, "again", values(LOOP))
    with scene.kubelet, scene.driver:
        scene.driver.starts()
        scene.wait_for(lambda: is_clean(store, 1), 240, "a pass")
        (jvm,) = (child for child in children(scene.driver.pid) if "SparkSubmit" in command_line(child))
        os.kill(jvm, signal.SIGKILL)
        wait_for(lambda: scene.kubelet.running == [], 60, "executors to see that their driver has gone")
        dirty_log(store, 2, first=1)
        scene.wait_for(lambda: is_clean(store, 3), 240, "a pass of the next Spark")
        assert scene.driver.ends() == 0, scene.driver.said[-3000:]
        wait_for(lambda: len(scene.kubelet.pods()) == SMALL["instances"], 60, "the executors of the next Spark to go")
    scene.are_as_wanted()
    assert len({ran.name for ran in scene.kubelet.ran}) == 2 * SMALL["instances"]
    left = {pod["status"]["phase"] for pod in scene.kubelet.pods()}
    assert left <= {"Succeeded", "Failed"}, "they have ended, and go with the driver's pod, which owns them"
    scene.unused()
    verified(s3.environment, f"s3://{BUCKET}/topics users")


def test_a_renewed_token_is_used(kube: KubeApiserver, s3: LocalS3Process, store: ObjectStore, tmp_path: Path) -> None:
    """A kubelet writes a new one before the old one expires, and a loop runs for months."""
    dirty_log(store, 1)
    scene = Scene(kube, s3, tmp_path, "renewed", values(LOOP))
    with scene.kubelet, scene.driver:
        scene.driver.starts()
        scene.wait_for(lambda: is_clean(store, 1), 240, "a pass")
        old = scene.token_path.read_text()
        account = one(scene.objects, "ServiceAccount", scene.user.name)
        assert kube.delete(account).is_good
        assert kube.apply(account).is_good
        scene.token_path.write_text(kube.token(scene.user))
        pods = f"/api/v1/namespaces/{scene.namespace}/pods"
        scene.wait_for(lambda: kube.get(pods, token=old).status == 401, 60, "the old token to end")
        scene.kubelet.running[0].signal(signal.SIGKILL)
        scene.wait_for(lambda: len(scene.kubelet.ran) > SMALL["instances"], 180, "another executor")
        assert scene.driver.ends() == 0, scene.driver.said[-3000:]
        wait_for(lambda: scene.kubelet.pods() == [], 60, "the executors' pods to go")
    scene.unused()
