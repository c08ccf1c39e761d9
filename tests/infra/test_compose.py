"""The stack for a laptop is valid for Compose, and its configurations are valid for keyfold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from compose_spec import PyOptions

from keyfold.cli.app import cli
from keyfold.config.config_file import read_config
from keyfold_compactor.options import CompactOptions
from keyfold_replicator.registry.run_options import RunOptions
from keyfold_sink.config.options import SinkOptions
from tests.support.dockerfile import Stage, dockerfile, stages

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "infra" / "compose"
TEXT = (COMPOSE / "compose.yaml").read_text()
STACK: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("keyfold-")]
COMMANDS = ["sink", "compactor", "replica"]


def final(service: dict[str, Any]) -> Stage:
    return stages((ROOT / service["build"]["dockerfile"]).read_text())[-1]


def test_compose_accepts_the_file() -> None:
    parsed = PyOptions(apply_merge=True).from_yaml(TEXT)
    parsed.validate()
    assert sorted(parsed.service_names()) == sorted(SERVICES)


def test_compose_refuses_a_mistake() -> None:
    with pytest.raises(ValueError, match="memlimit"):
        PyOptions(apply_merge=True).from_yaml(TEXT.replace("mem_limit: 3g", "memlimit: 3g"))


def test_every_port_is_on_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports)) == 7
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []


@pytest.mark.parametrize("name", OURS)
def test_own_containers_have_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", OURS)
def test_own_images_are_built_from_this_repository(name: str) -> None:
    service = SERVICES[name]
    assert (COMPOSE / service["build"]["context"]).resolve() == ROOT
    image = service["build"]["dockerfile"].split("/")[2]
    assert service["image"] == f"keyfold-{image}:0.1.0"
    assert (ROOT / service["build"]["dockerfile"]) == dockerfile(image)


def test_other_images_are_pinned_by_a_full_version() -> None:
    images = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$", image)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_files_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, _, target = volume.partition(":")
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
            assert target.endswith(":ro")
        else:
            assert source in STACK["volumes"]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_the_stack_exist_in_keyfold(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    words = [*final(service).last("ENTRYPOINT").words, *service["command"]]
    words = words[words.index("keyfold") + 1 :]
    group: click.Command = cli
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(cli), words[0])
        assert found is not None, words
        group, words = found, words[1:]
    inside = {volume.split(":")[1]: COMPOSE / volume.split(":")[0] for volume in service["volumes"]}
    assert words[0] in inside
    group.make_context("keyfold", [str(inside.get(word, word)) for word in words])


def environment(name: str) -> dict[str, str]:
    return dict(SERVICES[name]["environment"])


def test_configurations_of_the_stack_are_accepted_by_keyfold() -> None:
    folder = COMPOSE / "config"
    sink = SinkOptions.parse(read_config(folder / "sink.json", environ=environment("sink")))
    compact = CompactOptions.parse(read_config(folder / "compact.json", environ=environment("compactor")))
    replica = RunOptions.parse(read_config(folder / "replica.json", environ=environment("replica")))
    assert sink.bootstrap_servers == environment("sink")["BOOTSTRAP_SERVERS"]
    assert {sink.bucket, compact.bucket, replica.bucket} == {"log"}
    assert (sink.topics_dir, compact.topics_dir, replica.topics_dir) == ("topics", "topics", "topics")


def test_prometheus_scrapes_every_served_port() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]}
    assert targets == {
        "keyfold-sink": ["sink:8083"],
        "keyfold-compactor": ["compactor:9404"],
        "keyfold-replica": ["replica:9405"],
    }
    for job in targets:
        assert re.fullmatch(".*keyfold.*", job), "the alerts and the dashboard know our jobs by this"
    for (address,) in targets.values():
        service, _, port = address.partition(":")
        assert f"127.0.0.1:{port}:{port}" in SERVICES[service]["ports"]
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert set(scraped["rule_files"]) <= mounted


def test_grafana_has_the_dashboard_and_its_data_source() -> None:
    folder = COMPOSE / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["isDefault"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "dashboards" / "keyfold.yaml").read_text())["providers"]
    mounted = {volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert f"{provider['options']['path']}/keyfold.json" in mounted
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
