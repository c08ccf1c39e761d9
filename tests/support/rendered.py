"""Looking at rendered Kubernetes objects: their pods, what pods refer to, and the restricted Pod Security Standard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

Object = dict[str, Any]

# https://kubernetes.io/docs/concepts/security/pod-security-standards/
_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or what one is made from. `owner` says where it was found."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> list[Object]:
        """All of them, those that come first included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def name_of(each: Mapping[str, Any]) -> str:
    """`Kind/name`."""
    return f"{each['kind']}/{each['metadata']['name']}"


def pods(objects: Sequence[Object]) -> list[Pod]:
    """The pods that these objects make, the executors of the compactor's template among them."""
    return [pod for each in objects for pod in _pods(each)]


def _pods(each: Object) -> Iterator[Pod]:
    kind, owner = each["kind"], name_of(each)
    if kind == "Pod":
        yield Pod(owner, each["metadata"].get("labels", {}), each["spec"])
    elif kind in {"Deployment", "StatefulSet", "Job"}:
        yield _templated(owner, each["spec"]["template"])
    elif kind == "CronJob":
        yield _templated(owner, each["spec"]["jobTemplate"]["spec"]["template"])
    elif kind == "ConfigMap" and "executor.yaml" in each.get("data", {}):
        yield _templated(f"{owner}/executor.yaml", yaml.safe_load(each["data"]["executor.yaml"]))


def _templated(owner: str, template: Object) -> Pod:
    return Pod(owner, template["metadata"].get("labels", {}), template["spec"])


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector with `matchLabels` alone, as the chart's are, takes these labels."""
    assert set(selector) <= {"matchLabels"}, selector
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def references(pod: Pod) -> set[tuple[str, str, str]]:
    """(kind, name, key) of what a pod cannot start without; an empty key stands for the whole object."""
    found: set[tuple[str, str, str]] = set()
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume:
            found.add(("ConfigMap", volume["configMap"]["name"], ""))
        if "secret" in volume:
            found.add(("Secret", volume["secret"]["secretName"], ""))
    for container in pod.containers:
        found.update(_from_environment(container))
    return found


def _from_environment(container: Object) -> Iterator[tuple[str, str, str]]:
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
            if field in source:
                yield kind, source[field]["name"], source[field]["key"]
    for source in container.get("envFrom", []):
        for field, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if field in source:
                yield kind, source[field]["name"], ""


def breaches(pod: Pod) -> list[str]:
    """What the restricted Pod Security Standard forbids of a pod, in the standard's order; nothing: admitted."""
    spec = pod.spec
    found = [field for field in _HOST_FIELDS if spec.get(field)]
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - _VOLUMES]
    for container in pod.containers:
        found += [f"{container['name']}: {breach}" for breach in _container_breaches(container, spec)]
    return found


def _container_breaches(container: Object, spec: Mapping[str, Any]) -> Iterator[str]:
    own, general = container.get("securityContext", {}), spec.get("securityContext", {})
    both = {**general, **own}
    if own.get("privileged"):
        yield "privileged"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "hostPort"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if both.get("runAsNonRoot") is not True:
        yield "runAsNonRoot"
    if both.get("runAsUser") == 0:
        yield "runAsUser 0"
    if both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "seccompProfile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities: ALL is not dropped"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
