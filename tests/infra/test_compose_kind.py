"""The servers of the guide for kind: valid Kubernetes objects, with the names that the chart's values use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

INFRA = Path(__file__).parents[2] / "infra"
KIND = INFRA / "kind"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((KIND / "servers.yaml").read_text()))
VALUES: dict[str, Any] = yaml.safe_load((INFRA / "helm" / "keyfold" / "ci" / "laptop.yaml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())["services"]
SCRIPT: dict[str, Any] = yaml.safe_load((KIND / "scripts.yaml").read_text())
GUIDE = (KIND / "README.md").read_text()


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_objects_match_the_kubernetes_schemas(version: str) -> None:
    for each in [*OBJECTS, SCRIPT]:
        kubernetes_validate.validate(each, version, strict=True)
        assert each["metadata"].get("namespace", "keyfold") == "keyfold"


@pytest.mark.parametrize(
    "pod", [*(each["spec"]["template"]["spec"] for each in OBJECTS if each["kind"] == "Deployment"), SCRIPT["spec"]]
)
def test_pods_of_kind_meet_the_restricted_standard(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_servers_have_the_addresses_of_the_values() -> None:
    for address in (VALUES["store"]["url"].removeprefix("http://"), VALUES["sink"]["bootstrapServers"]):
        host, _, port = address.partition(":")
        name, namespace, _ = host.split(".")
        service = one("Service", name)
        assert namespace == service["metadata"]["namespace"]
        assert int(port) in [each["port"] for each in service["spec"]["ports"]]
        deployment = one("Deployment", name)["spec"]["template"]
        assert deployment["metadata"]["labels"] == service["spec"]["selector"]
        served = [each["containerPort"] for each in deployment["spec"]["containers"][0]["ports"]]
        assert {each["port"] for each in service["spec"]["ports"]} == set(served)


def test_the_secret_is_the_one_that_the_values_name() -> None:
    secret = one("Secret", VALUES["store"]["credentials"]["secretName"])
    assert set(secret["stringData"]) == {"access-key-id", "secret-access-key"}
    for key, value in secret["stringData"].items():
        assert value in GUIDE, key


def test_images_are_those_of_the_laptop_stack() -> None:
    for name in ("s3", "kafka"):
        assert one("Deployment", name)["spec"]["template"]["spec"]["containers"][0]["image"] == COMPOSE[name]["image"]
    assert SCRIPT["spec"]["containers"][0]["image"] == COMPOSE["setup"]["image"]


def test_the_script_defines_the_variables_that_it_reads() -> None:
    given = {each["name"] for each in SCRIPT["spec"]["containers"][0]["env"]}
    assert given == set(COMPOSE["setup"]["environment"]) - {"REPLICA"}
    assert VALUES["store"]["bucket"] in (INFRA / "compose" / "setup.py").read_text()


def test_names_in_the_guide_exist() -> None:
    named = set(re.findall(r"infra/[\w./-]*\w", GUIDE))
    assert {path for path in named if not (INFRA.parent / path).exists()} == set()
    assert len(named) >= 8
