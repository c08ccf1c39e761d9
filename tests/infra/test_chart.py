"""The chart as Helm renders it, for each documented set of values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import certifi
import click
import pytest
import yaml

from keyfold.cli.app import _add_commands, cli
from keyfold_compactor.options import CompactOptions
from keyfold_replicator.registry.run_options import RunOptions
from keyfold_sink.config.examine import examine
from tests.support.chart import command, config
from tests.support.helm import KUBERNETES_VERSION, VALUE_SETS, helm, one, template
from tests.support.kubernetes_schemas import validate
from tests.support.rendered import breaches, name_of, pods, references, selects

pytestmark = pytest.mark.real

SETS = sorted(VALUE_SETS.glob("*.yaml"))
each_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
# Versions that the chart says it can do, from the oldest to what is new.
VERSIONS = ("1.29", KUBERNETES_VERSION, "1.37")
ELSEWHERE = {"monitoring.coreos.com", "keda.sh"}
# Secrets that the sets of values name, with the keys that their comments or values make.
EXISTING = {
    "s3-keys",
    "kafka-user",
    "kafka-ca",
    "keyfold-rest",
    "keyfold-dr",
    "keyfold-catalog",
    "kafka-reader",
}


@each_set
def test_the_chart_passes_helm_lint(values: Path) -> None:
    answer = helm("lint", values)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@each_set
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_match_the_kubernetes_schemas(values: Path, version: str) -> None:
    for each in template(values):
        if each["apiVersion"].split("/")[0] not in ELSEWHERE:
            validate(each, version)


@each_set
def test_executors_match_the_kubernetes_schemas(values: Path) -> None:
    for each in template(values):
        if each["kind"] == "ConfigMap" and "executor.yaml" in each["data"]:
            validate(yaml.safe_load(each["data"]["executor.yaml"]), KUBERNETES_VERSION)


@each_set
def test_names_are_unique_and_all_objects_are_in_the_namespace(values: Path) -> None:
    objects = template(values)
    names = [name_of(each) for each in objects]
    assert len(names) == len(set(names))
    assert {each["metadata"]["namespace"] for each in objects} == {"keyfold"}
    assert all(len(each["metadata"]["name"]) <= 63 for each in objects)


@each_set
def test_pods_meet_the_restricted_standard(values: Path) -> None:
    found = {pod.owner: breaches(pod) for pod in pods(template(values))}
    assert found
    assert {owner: what for owner, what in found.items() if what} == {}


@each_set
def test_pods_write_only_to_volumes_and_get_no_unneeded_token(values: Path) -> None:
    for pod in pods(template(values)):
        for container in pod.containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in pod.spec["volumes"]}
            assert "/tmp" in {m["mountPath"] for m in container["volumeMounts"]}  # noqa: S108 - a mount of a pod
        drives = "k8s://https://kubernetes.default.svc" in " ".join(command(pod))
        assert pod.spec["automountServiceAccountToken"] is drives, pod.owner


@each_set
def test_containers_have_requests_and_limits(values: Path) -> None:
    for pod in pods(template(values)):
        if pod.owner.endswith("executor.yaml"):
            continue  # Spark sets it from its own settings
        for container in pod.containers:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), pod.owner
            assert "memory" in container["resources"]["limits"], pod.owner


@each_set
def test_selectors_match_exactly_their_pods(values: Path) -> None:
    objects = template(values)
    made = pods(objects)
    for each in objects:
        if each["kind"] in {"StatefulSet", "Deployment"}:
            chosen = {pod.owner for pod in made if selects(each["spec"]["selector"], pod.labels)}
            assert chosen == {name_of(each)}
        if each["kind"] == "Service":
            assert [pod for pod in made if selects({"matchLabels": each["spec"]["selector"]}, pod.labels)]
        if each["kind"] in {"PodDisruptionBudget", "PodMonitor"}:
            assert [pod for pod in made if selects(each["spec"]["selector"], pod.labels)]
        if each["kind"] == "NetworkPolicy":
            assert [pod for pod in made if selects(each["spec"]["podSelector"], pod.labels)], name_of(each)
        if each["kind"] == "ServiceMonitor":
            services = [other for other in objects if other["kind"] == "Service"]
            chosen = {
                s["metadata"]["name"] for s in services if selects(each["spec"]["selector"], s["metadata"]["labels"])
            }
            assert len(chosen) == 1, "each pod is scraped once"


@each_set
def test_named_ports_exist(values: Path) -> None:
    objects = template(values)
    for each in objects:
        if each["kind"] == "Service":
            chosen = [pod for pod in pods(objects) if selects({"matchLabels": each["spec"]["selector"]}, pod.labels)]
            wanted = {port["targetPort"] for port in each["spec"]["ports"]}
        elif each["kind"] == "PodMonitor":
            chosen = [pod for pod in pods(objects) if selects(each["spec"]["selector"], pod.labels)]
            wanted = {endpoint["port"] for endpoint in each["spec"]["podMetricsEndpoints"]}
        else:
            continue
        for pod in chosen:
            assert wanted <= {port["name"] for container in pod.containers for port in container.get("ports", [])}


@each_set
def test_every_referenced_config_map_secret_and_account_exists(values: Path) -> None:
    objects = template(values)
    there = {name_of(each) for each in objects}
    keys = {name_of(each): set(each["data"]) for each in objects if each["kind"] in {"ConfigMap", "Secret"}}
    for pod in pods(objects):
        for kind, name, key in references(pod):
            if kind == "Secret" and name in EXISTING:
                continue
            assert f"{kind}/{name}" in there, (pod.owner, name)
            assert not key or key in keys[f"{kind}/{name}"]
        account = pod.spec.get("serviceAccountName")
        assert account is None or f"ServiceAccount/{account}" in there
    for each in objects:
        if each["kind"] == "RoleBinding":
            assert f"Role/{each['roleRef']['name']}" in there
            assert all(f"ServiceAccount/{subject['name']}" in there for subject in each["subjects"])


@each_set
def test_rendered_configurations_are_accepted_by_keyfold(values: Path) -> None:
    objects = template(values)
    prefix = "clicks" if values.stem == "sink-only" else "kf-keyfold"
    there = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
    assert there
    if f"{prefix}-sink" in there:
        written = config(objects, "sink", prefix=prefix)
        written = {key: certifi.where() if key == "ssl.ca.location" else value for key, value in written.items()}
        findings = examine(written, {})
        assert findings.mistakes == ()
        assert findings.options is not None
    if f"{prefix}-compactor" in there:
        CompactOptions.parse(config(objects, "compactor", prefix=prefix))
    if f"{prefix}-replica" in there:
        RunOptions.parse(config(objects, "replica", prefix=prefix))


@each_set
def test_placeholders_are_variables_of_the_pod_or_files_of_a_secret(values: Path) -> None:
    objects = template(values)
    for pod in pods(objects):
        container = pod.containers[-1]
        names = {volume["configMap"]["name"] for volume in pod.spec["volumes"] if "configMap" in volume}
        text = " ".join(str(one(objects, "ConfigMap", name)["data"]) for name in names)
        variables = {variable["name"] for variable in container.get("env", [])}
        assert set(re.findall(r"\$\{env:(\w+)\}", text)) <= variables, pod.owner
        mounts = tuple(mount["mountPath"] for mount in container["volumeMounts"])
        assert all(path.startswith(mounts) for path in re.findall(r"\$\{file:([^:}]+)", text))
        used = set(re.findall(r"\$\((\w+)\)", " ".join(container.get("args", []))))
        assert used <= variables


@each_set
def test_commands_exist_in_keyfold(values: Path, tmp_path: Path) -> None:
    for pod in pods(template(values)):
        for container in pod.containers:
            words = [*container.get("command", []), *container.get("args", [])]
            if words[:1] == ["keyfold"]:
                parse(words[1:], tmp_path)
            elif words and words[0].endswith("spark-submit"):
                parse(["compact", *words[words.index("run") :]], tmp_path)


@each_set
def test_executors_are_authenticated_and_their_traffic_is_encrypted(values: Path) -> None:
    """Tasks carry the store's credentials."""
    for pod in pods(template(values)):
        words = " ".join(word for container in pod.containers for word in container.get("args", []))
        if "k8s://" in words:
            assert "spark.authenticate=true" in words, pod.owner
            assert "spark.network.crypto.enabled=true" in words, pod.owner


def parse(words: list[str], folder: Path) -> None:
    """Parse a command with keyfold's own command line. Raise `click.ClickException` if it is invalid."""
    file = folder / "config.json"
    file.touch()
    _add_commands()
    group: click.Command = cli
    context = click.Context(cli)
    while isinstance(group, click.Group):
        found = group.get_command(context, words[0])
        assert found is not None, words
        group, words = found, words[1:]
    mounted = ("/etc/keyfold/", "/run/secrets/")
    assert group.name == "sync" or any(word.startswith(mounted) for word in words)
    group.make_context("keyfold", [str(file) if word.startswith(mounted) else word for word in words])


@each_set
def test_files_that_a_command_reads_are_mounted(values: Path) -> None:
    objects = template(values)
    for pod in pods(objects):
        maps = {volume["name"]: volume["configMap"]["name"] for volume in pod.spec["volumes"] if "configMap" in volume}
        for container in pod.containers:
            there = {
                f"{mount['mountPath']}/{key}"
                for mount in container["volumeMounts"]
                if mount["name"] in maps
                for key in one(objects, "ConfigMap", maps[mount["name"]])["data"]
            }
            words = shlex.split(" ".join(container.get("args", []))) if container.get("args", [""])[0] != "" else []
            wanted = {path for word in words for path in re.findall(r"/etc/keyfold/[\w.]+", word)}
            assert wanted <= there
