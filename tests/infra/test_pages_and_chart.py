"""Commands on the pages for operators use the names that the chart gives a release called `keyfold`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.chart import with_values
from tests.support.helm import CHART, template
from tests.support.rendered import Object, pods

pytestmark = pytest.mark.real

RELEASE = "keyfold"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "operations"
PAGES = [*sorted(FOLDER.rglob("*.md")), CHART / "README.md", ROOT / "infra" / "kind" / "README.md"]
COMMAND = re.compile(r"(?:kubectl|helm) [^`\n|)]+")
NAME = re.compile(r"(?:([a-z]+)/)?([a-z0-9-]*keyfold-[a-z0-9-]+)")
# By the word that stands before a name, or before the slash in it.
KINDS = {
    "cronjob": "CronJob",
    "deployment": "Deployment",
    "job": "Job",
    "secret": "Secret",
    "service": "Service",
    "statefulset": "StatefulSet",
    "svc": "Service",
}
RELEASES = ("install", "upgrade", "test", "rollback", "uninstall")
OF_SPARK = ("label", "spark-role=executor")

each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


@cache
def there() -> frozenset[tuple[str, str]]:
    """Return the objects of a release with all services, by kind and name: the compactor as CronJob and as loop."""
    found = {("release", RELEASE), OF_SPARK}
    tables = {"tables": {"users": {"topic": "users", "to": "s3://lake/tables/users"}}}
    others = {"replica": {"enabled": True}, "serve": {"enabled": True}, "table": tables}
    for mode in ("cron", "loop"):
        for each in template(with_values({"compactor": {"mode": mode}, **others}), name=RELEASE):
            found |= {(each["kind"], each["metadata"]["name"]), *made_of(each)}
    return frozenset(found)


def made_of(each: Object) -> Iterator[tuple[str, str]]:
    """Return the names of a StatefulSet's pods, and the labels of all objects."""
    labels = dict(each["metadata"]["labels"])
    for pod in pods([each]):
        labels |= pod.labels
    yield from (("label", f"{key}={value}") for key, value in labels.items())
    if each["kind"] == "StatefulSet":
        yield from (("Pod", f"{each['metadata']['name']}-{number}") for number in range(each["spec"]["replicas"]))


def named(command: str) -> Iterator[tuple[str, str]]:
    """Return the objects that a command names, by kind and name."""
    words = shlex.split(command.rstrip("&. "))
    words = words[: words.index("--")] if "--" in words else words
    made = words[-1] if words[:3] == ["kubectl", "create", "job"] else ""
    if words[0] == "helm" and words[1] in RELEASES and len(words) > 2:
        yield "release", words[2]
    for before, word in pairwise(words):
        if before == "-l":
            yield from (("label", label) for label in word.split(","))
        if before == "--filter":
            yield "Pod", word.removeprefix("name=")
        found = NAME.fullmatch(word.partition("=")[2] if word.startswith("--from=") else word)
        if found is not None and word != made:
            yield KINDS.get(found[1] or before, "Pod"), found[2]


def missing(text: str) -> list[str]:
    """Return commands with the missing objects that they name; jobs created on a page exist."""
    commands = COMMAND.findall(text.replace("\\\n", " "))
    jobs = {("Job", command.split()[-1]) for command in commands if command.startswith("kubectl create job")}
    return [
        f"{command}: no {kind} {name}"
        for command in commands
        for kind, name in named(command)
        if (kind, name) not in there() | jobs
    ]


@each_page
def test_commands_on_the_pages_use_the_charts_object_names(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == []


def test_commands_are_found_on_the_pages() -> None:
    found = {one for path in PAGES for command in COMMAND.findall(path.read_text()) for one in named(command)}
    assert {kind for kind, _ in found} >= {"Pod", "StatefulSet", "Deployment", "CronJob", "Secret", "label", "release"}
    assert len(found) > 12


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("helm test kf --logs", "release kf"),
        ("kubectl logs keyfold-sink-2 --tail=50", "Pod keyfold-sink-2"),
        ("kubectl logs kf-keyfold-sink-0 --tail=50", "Pod kf-keyfold-sink-0"),
        ("kubectl scale deployment keyfold-sink --replicas=0", "Deployment keyfold-sink"),
        ("kubectl rollout status statefulset/keyfold-compactor", "StatefulSet keyfold-compactor"),
        ("kubectl get pods -l app.kubernetes.io/component=cleaner", "label app.kubernetes.io/component=cleaner"),
        ("kubectl get secret keyfold-token -o yaml", "Secret keyfold-token"),
        ("kubectl create job --from=cronjob/keyfold-sink now", "CronJob keyfold-sink"),
        ("helm test keyfold --filter name=keyfold-test-cleaner", "Pod keyfold-test-cleaner"),
    ],
)
def test_a_wrong_object_name_is_detected(command: str, what: str) -> None:
    assert missing(command) == [f"{command}: no {what}"]
