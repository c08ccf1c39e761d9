"""The chart before a real kube-apiserver: every object is taken, every pod is within the restricted Pod Security
Standard, and service accounts may do what their pods need and nothing else.

Each documented set of values has a namespace that enforces the standard. Pods are refused when they are created and not
with what makes them, so a pod is made of each template, executors of Spark as Spark makes them included. Monitors,
rules and scalers are held to the definitions that Prometheus Operator and KEDA publish of them, a trigger of KEDA's,
which its definition leaves open, to what KEDA says its scaler reads. What operators do with them is not judged here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import with_values
from tests.support.crds import definitions, scaler_parameters
from tests.support.helm import VALUE_SETS, template
from tests.support.kube_apiserver import Access, KubeApiserver, User
from tests.support.rendered import Object, Pod, name_of, pods

pytestmark = pytest.mark.kube

PAGES = Path(__file__).parents[2] / "docs" / "operations"
SETS = sorted(VALUE_SETS.glob("*.yaml"))
each_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
IMAGE = "keyfold-compactor:0.1.0"
POD_VERBS = ("create", "get", "list", "watch", "delete", "deletecollection")

# Requests that an intruder in a pod would try next.
TEMPTING = (
    *(Access(verb, "secrets") for verb in ("get", "list", "watch", "create", "update", "patch", "delete")),
    *(Access(verb, "configmaps") for verb in ("get", "list", "create", "update", "patch", "delete")),
    *(Access("create", f"pods/{what}") for what in ("exec", "attach", "portforward", "eviction", "binding")),
    *(Access(verb, what) for verb in ("get", "create") for what in ("pods/exec", "pods/attach", "pods/portforward")),
    *(Access("get", what) for what in ("pods/log", "pods/status", "pods/proxy")),
    *(Access(verb, "pods") for verb in ("update", "patch", "*")),
    Access("patch", "pods/ephemeralcontainers"),
    Access("update", "pods/status"),
    *(Access(verb, "pods", namespace="kube-system") for verb in POD_VERBS),
    *(Access(verb, "pods", namespace="") for verb in POD_VERBS),
    *(Access(verb, "secrets", namespace="kube-system") for verb in ("get", "list")),
    *(Access("create", what) for what in ("services", "persistentvolumeclaims", "serviceaccounts", "events")),
    *(Access("create", what) for what in ("replicationcontrollers", "serviceaccounts/token", "endpoints")),
    *(Access(verb, what, "apps") for verb in ("create", "patch", "delete") for what in ("deployments", "statefulsets")),
    *(Access(verb, what, "apps") for verb in ("create", "patch") for what in ("daemonsets", "statefulsets/scale")),
    *(Access(verb, what, "batch") for verb in ("create", "patch", "delete") for what in ("jobs", "cronjobs")),
    *(
        Access(verb, what, "rbac.authorization.k8s.io")
        for verb in ("create", "update", "patch", "bind", "escalate", "get", "list")
        for what in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
    ),
    *(Access(verb, "networkpolicies", "networking.k8s.io") for verb in ("create", "delete", "patch")),
    *(Access(verb, "poddisruptionbudgets", "policy") for verb in ("create", "delete")),
    *(Access(verb, what, namespace="") for verb in ("get", "list", "patch") for what in ("nodes", "namespaces")),
    *(Access(verb, what, namespace="") for verb in ("get", "list", "create") for what in ("persistentvolumes",)),
    Access("get", "nodes/proxy", namespace=""),
    *(Access("impersonate", what, namespace="") for what in ("users", "groups", "serviceaccounts")),
    Access("create", "certificatesigningrequests", "certificates.k8s.io", ""),
    Access("create", "mutatingwebhookconfigurations", "admissionregistration.k8s.io", ""),
    Access("create", "customresourcedefinitions", "apiextensions.k8s.io", ""),
    Access("*", "*", "*", ""),
    Access("*", "*", "*"),
)


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeApiserver]:
    with KubeApiserver() as running:
        for each in definitions():
            running.define(each)
        running.namespace("monitoring")
        yield running


class Installed:
    """A set of values in its own namespace, as an installation leaves it, without the work of controllers."""

    def __init__(self, kube: KubeApiserver, values: Path, suffix: str = "") -> None:
        self.kube = kube
        self.namespace = kube.namespace(f"kf-{values.stem}{suffix}")
        self.objects = template(values, namespace=self.namespace)
        self.answers: dict[str, str] = {}

    def apply(self, objects: Sequence[Object] | None = None, *, is_trial: bool = False) -> dict[str, str]:
        """Return the refusals and warnings of the server, by object; service accounts come first, as with Helm."""
        found = {}
        for each in sorted(self.objects if objects is None else objects, key=lambda o: o["kind"] != "ServiceAccount"):
            answer = self.kube.apply(each, is_trial=is_trial)
            if not answer.is_good or answer.warnings:
                found[name_of(each)] = str(answer)
        return found

    @property
    def accounts(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.objects if each["kind"] == "ServiceAccount"]


# What is applied


@each_set
def test_every_object_is_accepted_without_a_warning_and_accepted_again(kube: KubeApiserver, values: Path) -> None:
    installed = Installed(kube, values)
    accounts = [each for each in installed.objects if each["kind"] == "ServiceAccount"]
    assert installed.apply(accounts) == {}
    assert installed.apply(is_trial=True) == {}
    assert installed.apply() == {}
    assert installed.apply() == {}, "a second time"
    for each in installed.objects:
        assert each["metadata"]["namespace"] == installed.namespace, name_of(each)


def test_changed_values_of_an_upgrade_are_accepted_over_existing_objects(kube: KubeApiserver) -> None:
    """Kubernetes refuses changes of some fields of existing objects: a StatefulSet's selector, a Job's template."""
    values = VALUE_SETS / "replica.yaml"
    installed = Installed(kube, values, "-upgrade")
    assert installed.apply() == {}
    changes: dict[str, Any] = {
        "store": {"bucket": "another-log", "region": "eu-west-1"},
        "sink": {
            "enabled": True,
            "bootstrapServers": "kafka:9092",
            "image": {"tag": "0.2.0"},
            "replicas": 5,
            "config": {"topics": "users", "tasks.max": 3},
            "terminationGracePeriodSeconds": 90,
            "resources": {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi", "cpu": "2"}},
        },
        "compactor": {"mode": "cron", "cron": {"schedule": "5 * * * *"}, "image": {"tag": "0.2.0"}},
        "replica": {"enabled": True, "config": {"replicas": "dr,archive"}},
    }
    upgraded = [
        each
        for each in template(changes, namespace=installed.namespace)
        if each["kind"] != "Pod"  # Helm deletes a test's pod before it creates it again
    ]
    assert installed.apply(upgraded) == {}


def test_an_unknown_field_is_refused(kube: KubeApiserver) -> None:
    """The checks above would detect a typing error."""
    installed = Installed(kube, VALUE_SETS / "cron.yaml", "-slip")
    (wrong,) = (copy.deepcopy(each) for each in installed.objects if each["kind"] == "StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    answer = kube.apply(wrong)
    assert not answer.is_good
    assert "livenessProb" in answer.body["message"]


# What other projects' operators are given

OTHERS = ("PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor")


def of_others(kind: str) -> list[Object]:
    return [each for values in SETS for each in template(values) if each["kind"] == kind]


@pytest.mark.parametrize("kind", OTHERS)
def test_a_mistake_in_an_operators_resource_is_refused(kube: KubeApiserver, kind: str) -> None:
    """The operators' own definitions are installed; without them any content would be accepted."""
    rendered = of_others(kind)
    assert rendered, f"no set of values makes a {kind}"
    namespace = kube.namespace(f"kf-slip-{kind.lower()}")
    good = copy.deepcopy(rendered[0])
    good["metadata"]["namespace"] = namespace
    answer = kube.apply(good, is_trial=True)
    assert (answer.is_good, answer.warnings) == (True, ()), answer
    for wrong, words in slips(good):
        answer = kube.apply(wrong, is_trial=True)
        assert not answer.is_good, words
        assert words in answer.body["message"]


def slips(good: Object) -> Iterator[tuple[Object, str]]:
    """Return an object with an unknown field, and one with a value of another type."""
    (part,) = ({"endpoints", "podMetricsEndpoints", "groups", "triggers"} & set(good["spec"])) or {""}
    misspelt = copy.deepcopy(good)
    misspelt["spec"][part][0]["intervall"] = "30s"
    yield misspelt, "intervall"
    mistyped = copy.deepcopy(good)
    mistyped["spec"][part] = {"first": mistyped["spec"][part][0]}
    yield mistyped, part


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_a_scaler_waits_an_hour_at_most(kube: KubeApiserver, kind: str) -> None:
    """The chart's own schema has the same limit for `scaleDownAfterSeconds`."""
    scaling = {"type": kind, "scaleDownAfterSeconds": 3600}
    namespace = kube.namespace(f"kf-hour-{kind}")
    objects = template(with_values({"sink": {"autoscaling": scaling}}), namespace=namespace)
    (scaler,) = (each for each in objects if each["kind"] in {"HorizontalPodAutoscaler", "ScaledObject"})
    assert str(kube.apply(scaler, is_trial=True)) == "201"
    longer = json.loads(json.dumps(scaler).replace("3600", "3601"))
    answer = kube.apply(longer, is_trial=True)
    assert not answer.is_good
    assert "stabilizationWindowSeconds" in answer.body["message"]


def test_objects_in_the_documentation_are_accepted(kube: KubeApiserver) -> None:
    objects = [each for path in sorted(PAGES.rglob("*.md")) for each in objects_on(path)]
    assert {each["kind"] for each in objects} >= {"TriggerAuthentication"}
    namespace = kube.namespace("kf-pages")
    for each in objects:
        each["metadata"]["namespace"] = namespace
        answer = kube.apply(each, is_trial=True)
        assert (answer.is_good, answer.warnings) == (True, ()), f"{name_of(each)}: {answer}"
        if each["kind"] == "TriggerAuthentication":
            known = scaler_parameters("kafka")
            for given in each["spec"]["secretTargetRef"]:
                assert known[given["parameter"]]["triggerAuthenticationVariableReadable"], given


def objects_on(path: Path) -> list[Object]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [each for block in blocks for each in yaml.safe_load_all(block) if each and "kind" in each]


def test_keda_reads_the_values_of_a_trigger() -> None:
    """The definition accepts any strings as a trigger's metadata; the scaler accepts some, with some values."""
    triggers = [trigger for each in of_others("ScaledObject") for trigger in each["spec"]["triggers"]]
    assert triggers
    for trigger in triggers:
        assert trigger_mistakes(trigger) == []
    (first, *_) = triggers
    assert trigger_mistakes(first | {"metadata": first["metadata"] | {"lagTreshold": "1"}}) == ["lagTreshold"]
    assert trigger_mistakes(first | {"metadata": first["metadata"] | {"tls": "true"}}) == ["tls: true"]
    assert trigger_mistakes(first | {"metadata": {"topic": "users"}}) == ["no bootstrapServers", "no consumerGroup"]


def trigger_mistakes(trigger: Object) -> list[str]:
    known, given = scaler_parameters(trigger["type"]), trigger["metadata"]
    readable = {name: each for name, each in known.items() if each.get("metadataVariableReadable")}
    found = [name for name in given if name not in readable]
    for name, each in readable.items():
        if name in given and given[name] not in each.get("allowedValue", [given[name]]):
            found.append(f"{name}: {given[name]}")
        if name not in given and not each.get("optional") and "default" not in each:
            found.append(f"no {name}")
    return found


# Pods


def as_created(pod: Pod, namespace: str, accounts: Sequence[str]) -> Object:
    """Return a pod as its controller creates it; an executor with the fields that Spark adds to its template."""
    spec = copy.deepcopy(dict(pod.spec))
    if pod.owner.endswith("executor.yaml"):
        spec["containers"][0]["image"] = IMAGE
        spec["restartPolicy"] = "Never"
        spec["serviceAccountName"] = next(name for name in accounts if name.endswith("executor"))
    name = pod.owner.lower().replace("/", "-").replace(".", "-")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"made-of-{name}"[:63].rstrip("-"), "namespace": namespace, "labels": dict(pod.labels)},
        "spec": spec,
    }


@each_set
def test_every_pod_is_admitted_under_the_restricted_standard(kube: KubeApiserver, values: Path) -> None:
    installed = Installed(kube, values, "-pods")
    installed.apply([each for each in installed.objects if each["kind"] == "ServiceAccount"])
    found = pods(installed.objects)
    assert found
    for pod in found:
        answer = kube.create(as_created(pod, installed.namespace, installed.accounts))
        assert (answer.is_good, answer.warnings) == (True, ()), f"{pod.owner}: {answer}"
        mounted = [volume for volume in answer.body["spec"].get("volumes", ()) if "projected" in volume]
        talks = bool(pod.spec.get("automountServiceAccountToken"))
        assert bool(mounted) is talks, f"{pod.owner}: a token is there where it talks to the API, and nowhere else"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runAsUser": 0}, "runAsUser=0"),
        ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
        ({"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}, "capabilities"),
        ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
    ],
)
def test_a_pod_outside_the_restricted_standard_is_refused(
    kube: KubeApiserver, change: dict[str, Any], words: str
) -> None:
    """The namespaces enforce the standard."""
    name = f"-{words.partition('=')[0].lower()}"
    installed = Installed(kube, VALUE_SETS / "cron.yaml", name)
    installed.apply([each for each in installed.objects if each["kind"] == "ServiceAccount"])
    pod = next(each for each in pods(installed.objects) if each.owner.startswith("StatefulSet"))
    made = as_created(pod, installed.namespace, installed.accounts)
    made["spec"]["containers"][0]["securityContext"] |= change
    answer = kube.create(made)
    assert answer.status == 403, answer
    assert "violates PodSecurity" in answer.body["message"]
    assert words in answer.body["message"]


# Rights


@each_set
def test_service_accounts_have_exactly_the_rights_that_their_pods_need(kube: KubeApiserver, values: Path) -> None:
    installed = Installed(kube, values, "-rights")
    assert installed.apply() == {}
    makes_executors = any(name.endswith("executor") for name in installed.accounts)
    for account in installed.accounts:
        user = User(installed.namespace, account)
        is_driver = makes_executors and account.endswith("compactor")
        assert {verb: kube.may(user, Access(verb, "pods")) for verb in POD_VERBS} == dict.fromkeys(POD_VERBS, is_driver)
        may = [access for access in TEMPTING if kube.may(user, access)]
        assert may == [], f"{account} may too much"


def test_a_drivers_token_allows_exactly_what_it_needs(kube: KubeApiserver) -> None:
    """An executor is created, read and removed with the pod's own token."""
    installed = Installed(kube, VALUE_SETS / "spark-kubernetes.yaml", "-deeds")
    assert installed.apply() == {}
    account = next(name for name in installed.accounts if name.endswith("compactor"))
    token = kube.token(User(installed.namespace, account))
    executor = next(pod for pod in pods(installed.objects) if pod.owner.endswith("executor.yaml"))
    made = as_created(executor, installed.namespace, installed.accounts)
    assert kube.create(made, token=token).is_good
    core = f"/api/v1/namespaces/{installed.namespace}"
    assert kube.get(f"{core}/pods", token=token).is_good
    assert kube.get(f"{core}/pods/{made['metadata']['name']}", token=token).is_good
    root = copy.deepcopy(made)
    root["metadata"]["name"] = "root"
    root["spec"]["containers"][0]["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    assert kube.create(root, token=token).status == 403, "the standard holds for its pods, too"
    for path in ("secrets", "configmaps", "serviceaccounts", f"pods/{made['metadata']['name']}/log"):
        assert kube.get(f"{core}/{path}", token=token).status == 403, path
    assert kube.get("/api/v1/namespaces/kube-system/pods", token=token).status == 403
    assert kube.get("/api/v1/nodes", token=token).status == 403


def test_an_unknown_account_has_no_rights(kube: KubeApiserver) -> None:
    assert kube.get("/api/v1/namespaces/kube-system/secrets", token="of-nobody").status == 401
    assert not kube.may(User("default", "default"), Access("list", "pods"))
