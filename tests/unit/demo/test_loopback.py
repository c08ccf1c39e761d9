"""With a proxy in the environment, local servers are reached directly and everything else through the proxy."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request

import pytest

from keyfold_demo.children import free_port
from keyfold_demo.loopback import without_proxy
from tests.support.root import ROOT

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.mark.parametrize("name", [*PROXIES, *map(str.lower, PROXIES)])
def test_loopback_is_added_to_the_existing_exclusions(name: str) -> None:
    found = without_proxy({name: "http://proxy:3128", "NO_PROXY": "a.example, 127.0.0.1", "no_proxy": ".b.example"})
    assert found == dict.fromkeys(("NO_PROXY", "no_proxy"), "a.example,127.0.0.1,.b.example,localhost,::1")


def test_nothing_is_set_without_a_proxy() -> None:
    assert without_proxy({"NO_PROXY": "a.example", "HTTP_PROXY": ""}) == {}


def test_an_environment_that_bypasses_all_proxies_is_unchanged() -> None:
    assert without_proxy({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "*"})["NO_PROXY"] == "*"


def test_other_addresses_keep_their_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *map(str.lower, PROXIES), "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    for name, value in without_proxy(os.environ).items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass("127.0.0.1:9000")
    assert urllib.request.proxy_bypass("localhost:9000")
    assert not urllib.request.proxy_bypass("s3.eu-central-1.amazonaws.com")


@pytest.mark.full
def test_tests_with_local_servers_pass_although_a_proxy_is_set() -> None:
    """Clients of every kind: boto3 and urllib in one process, and a command in another one."""
    dead = f"http://127.0.0.1:{free_port()}"
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    tests = [
        "tests/unit/store/test_probe.py::test_moto_behind_a_lock_passes",
        "tests/integration/test_compactor_command.py::test_a_lost_manifest_exits_with_1_and_changes_nothing",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    proxies = dict.fromkeys((*PROXIES, *map(str.lower, PROXIES)), dead)
    done = subprocess.run(
        command, cwd=ROOT, env={**inherited, **proxies}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
