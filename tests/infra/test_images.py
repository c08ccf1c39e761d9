"""Properties of the images that their Dockerfiles and scripts show. `make images-try` builds and starts them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from keyfold_compactor import __main__ as spark_script
from tests.support.dockerfile import IMAGES, Stage, dockerfile, stages

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHART = ROOT / "infra" / "helm" / "keyfold"
ENTRYPOINT = IMAGES / "compactor" / "entrypoint.sh"

each_image = pytest.mark.parametrize("image", ["sink", "compactor"])


def final(image: str) -> Stage:
    return stages(dockerfile(image).read_text())[-1]


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None, "hadolint is not in the virtual environment"
    return subprocess.run([program, "--no-color", str(path)], capture_output=True, text=True, check=False, timeout=60)


@each_image
def test_hadolint_finds_nothing(image: str) -> None:
    answer = hadolint(dockerfile(image))
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


def test_hadolint_detects_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN apt-get install gcc\n")
    answer = hadolint(tmp_path / "Dockerfile")
    assert answer.returncode != 0
    assert "DL3006" in answer.stdout


@each_image
def test_bases_are_pinned_by_a_full_version(image: str) -> None:
    for stage in stages(dockerfile(image).read_text()):
        assert re.search(r":\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$", stage.base), stage.base


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    """Return the Dockerfiles after `pin_digests.sh`, with a fake docker that knows the digests."""
    for name in ("infra/images", "infra/compose"):
        shutil.copytree(ROOT / name, tmp_path / name)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\nprintf "sha256:%s\\n" "$(printf %s "${PREFIX}$6" | sha256sum | cut -d " " -f 1)"\n')
    docker.chmod(0o755)
    return tmp_path


def pin(folder: Path, prefix: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PREFIX": prefix}
    script = folder / "infra" / "images" / "pin_digests.sh"
    return subprocess.run([script], env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("before", ["", "an older build of "])
def test_foreign_images_can_be_pinned_by_digest(pinned: Path, before: str) -> None:
    if before:
        assert pin(pinned, before).returncode == 0
    answer = pin(pinned)
    assert (answer.returncode, answer.stderr) == (0, "")
    for relative in ("infra/images/sink/Dockerfile", "infra/images/compactor/Dockerfile", "infra/compose/compose.yaml"):
        was = (ROOT / relative).read_text().splitlines()
        now = (pinned / relative).read_text().splitlines()
        for old, new in zip(was, now, strict=True):
            others = re.match(r"(?:ARG \w+_IMAGE=|\s+image: )(docker\.io/[^@\s]+)", old)
            if others is None:
                assert new == old
            else:
                digest = hashlib.sha256(others[1].encode()).hexdigest()
                assert new == f"{others[0]}@sha256:{digest}"


def test_no_file_changes_if_a_digest_is_unavailable(pinned: Path) -> None:
    (pinned / "bin" / "docker").write_text("#!/bin/sh\necho manifest unknown\n")
    answer = pin(pinned)
    assert answer.returncode == 1
    assert "the answer is no digest: manifest unknown" in answer.stderr
    for file in (pinned / "infra").rglob("*"):
        if file.is_file():
            assert file.read_bytes() == (ROOT / file.relative_to(pinned)).read_bytes()


def test_both_images_have_the_same_python() -> None:
    assert final("sink").base == final("compactor").base
    minor = re.search(r":(\d+\.\d+)\.", final("sink").base)
    assert minor is not None
    for image in ("sink", "compactor"):
        named = set(re.findall(r"python(3\.\d+)", dockerfile(image).read_text()))
        assert named == {minor.group(1)}


@each_image
def test_images_run_without_privileges_and_installation_tools(image: str) -> None:
    stage = final(image)
    uid, gid = stage.last("USER").rest.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    runs = " ".join(each.rest for each in stage.all("RUN"))
    assert "pip uninstall" in runs
    assert not re.search(r"\b(apt-get|apt|pip3? install|curl|wget|gcc|make)\b", runs)
    assert stage.all("ADD") == []
    assert stage.last("ENTRYPOINT").rest.startswith("[")
    assert stage.last("CMD").rest.startswith("[")


@each_image
def test_the_chart_runs_an_image_as_its_user(image: str) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    uid = int(final(image).last("USER").rest.split(":")[0])
    assert values[image]["runAsUser"] == uid
    assert values[image]["image"]["repository"] == f"keyfold-{image}"


def test_spark_has_the_path_that_the_chart_uses() -> None:
    spark = yaml.safe_load((CHART / "values.yaml").read_text())["compactor"]["spark"]
    environment = final("compactor").environment
    assert spark["home"] == environment["SPARK_HOME"]
    assert spark["python"] == environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"]
    source, target = re.findall(r"cp (\S+) (\S+)", dockerfile("compactor").read_text())[0]
    assert spark["script"] == target
    assert (ROOT / source).samefile(str(spark_script.__file__))


@each_image
def test_labels_describe_the_image(image: str) -> None:
    labels = final(image).labels
    assert labels["org.opencontainers.image.title"] == f"keyfold-{image}"
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    version = next(each.rest for each in final(image).all("ARG") if each.rest.startswith("VERSION="))
    assert version == f"VERSION={PROJECT['version']}"


@each_image
def test_copied_files_exist_and_are_in_the_build_context(image: str) -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    sent = [line[1:] for line in lines if line.startswith("!")]
    for stage in stages(dockerfile(image).read_text()):
        for copy in stage.all("COPY"):
            words = [word for word in copy.words if not word.startswith("--chmod")]
            if words[0].startswith("--from"):
                continue
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == one or fnmatch(source, f"{one}/*") for one in sent), source


def test_every_source_of_the_wheel_is_copied() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for image in ("sink", "compactor"):
        build = next(stage for stage in stages(dockerfile(image).read_text()) if stage.name == "build")
        copied = {source for each in build.all("COPY") for source in each.words[:-1]}
        assert {package.split("/")[0] for package in wheel["packages"]} <= copied
        assert {"README.md", "LICENSE", "pyproject.toml"} <= copied


@pytest.mark.parametrize(("image", "extra"), [("sink", "sink"), ("compactor", "spark")])
def test_libraries_match_the_extra(image: str, extra: str) -> None:
    build = next(stage for stage in stages(dockerfile(image).read_text()) if stage.name == "build")
    named = re.findall(r"requirements/\w+\.txt", " ".join(each.rest for each in build.all("RUN")))
    assert named == ["requirements/build.txt", f"requirements/{extra}.txt"]


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    """Run the script with a fake tini that prints the command."""
    script = tmp_path / "entrypoint.sh"
    text = ENTRYPOINT.read_text()
    assert "exec /usr/bin/tini -s -- " in text
    script.write_text(text.replace("exec /usr/bin/tini -s -- ", r"printf '%s\n' "))
    return script


def run(script: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", script, *words], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


EXECUTOR = {
    "JAVA_HOME": "/opt/java/openjdk",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "compactor-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
}


def test_the_entrypoint_builds_an_executor_from_sparks_variables(entrypoint: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Da{number}=two words" for number in range(11)}
    answer = run(entrypoint, "executor", **EXECUTOR, **options)
    assert answer.stdout.splitlines() == [
        "/opt/java/openjdk/bin/java",
        *[f"-Da{number}=two words" for number in range(11)],
        "-Xms1024m",
        "-Xmx1024m",
        "-cp",
        "/opt/spark/conf:/opt/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078"),
        *("--executor-id", "3"),
        *("--cores", "2"),
        *("--app-id", "spark-1"),
        *("--hostname", "10.0.0.7"),
        *("--resourceProfileId", "0"),
        *("--podName", "compactor-exec-3"),
    ]
    assert (answer.returncode, answer.stderr) == (0, "")


def test_class_paths_set_by_spark_are_preserved(entrypoint: Path) -> None:
    given = {"SPARK_CLASSPATH": "/a.jar", "SPARK_EXTRA_CLASSPATH": "/b.jar", "SPARK_DIST_CLASSPATH": "/c.jar"}
    answer = run(entrypoint, "executor", **EXECUTOR, **given, HADOOP_CONF_DIR="/etc/hadoop")
    assert "/opt/spark/conf:/etc/hadoop:/a.jar:/opt/spark/jars/*:/b.jar:/c.jar" in answer.stdout.splitlines()


def test_a_missing_variable_of_an_executor_is_named(entrypoint: Path) -> None:
    without = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    answer = run(entrypoint, "executor", **without)
    assert answer.returncode != 0
    assert "SPARK_DRIVER_URL" in answer.stderr


def test_the_entrypoint_starts_a_driver_by_spark_submit(entrypoint: Path) -> None:
    words = ("--properties-file", "/opt/spark/conf/spark.properties", "local:///opt/keyfold/keyfold_compact.py", "run")
    answer = run(entrypoint, "driver", *words, SPARK_DRIVER_BIND_ADDRESS="10.0.0.5")
    assert answer.stdout.splitlines() == [
        "/opt/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.0.0.5"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.5"),
        *("--deploy-mode", "client"),
        *words,
    ]


def test_other_commands_run_unchanged(entrypoint: Path) -> None:
    words = ["keyfold", "compact", "run", "/etc/keyfold/compact.json", "two words"]
    assert run(entrypoint, *words).stdout.splitlines() == words
    assert run(entrypoint).returncode == 2
