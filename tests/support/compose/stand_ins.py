"""Stand-ins for the images of others that the stack runs, under their names and tags: where no registry can be asked.

    apache/kafka          Kafka's jars from Maven Central (`KAFKA_VERSION`, which is newer than the tag), Kafka's own
                          KafkaDockerWrapper, and the one script of Kafka's that the stack calls; as user 1000
    versity/versitygw     the program of that very version, with the entrypoint that its source has
    prom/prometheus       the program of that very version; as user nobody, as there
    grafana/grafana       none: its pages are built by tools and packages that the tests do not have

All are made on the stand-ins for Python's and Java's bases (`tests.support.images.bases`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from keyfold_demo.java import KAFKA_VERSION, JarSet, default_cache, jars, kafka_jars
from tests.support import prometheus, versitygw
from tests.support.go_program import find_go
from tests.support.images.bases import Buildah, base_names

KAFKA_TOOLS: Final = JarSet(
    "Kafka's tools",
    f"kafka-tools/{KAFKA_VERSION}",
    (("org.apache.kafka", "kafka-tools", KAFKA_VERSION),),
    tuple(("org.apache.kafka", f"connect-{part}") for part in ("api", "json", "runtime", "transforms")),
)
_RECIPES: Final[Mapping[str, str]] = {
    "kafka": """
FROM {java}
RUN useradd --uid 1000 --create-home appuser \\
    && mkdir -p /etc/kafka/docker /etc/kafka/secrets /mnt/shared/config /var/lib/kafka/data \\
    && mkdir -p /opt/kafka/bin /opt/kafka/config \\
    && for name in server.properties log4j2.yaml tools-log4j2.yaml; do echo '' > /etc/kafka/docker/$name; done
COPY libs /opt/kafka/libs
COPY run /etc/kafka/docker/run
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
RUN chown -R appuser /opt/kafka/config /var/lib/kafka /etc/kafka /mnt/shared/config \\
    && chmod 0755 /etc/kafka/docker/run /opt/kafka/bin/kafka-broker-api-versions.sh
ENV PATH=/opt/java/openjdk/bin:/usr/local/bin:/usr/bin:/bin
USER appuser
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
EXPOSE 9092
CMD ["/etc/kafka/docker/run"]
""",
    "s3": """
FROM {python}
RUN mkdir -p /tmp/vgw
COPY versitygw docker-entrypoint.sh /usr/local/bin/
RUN chmod 0755 /usr/local/bin/versitygw /usr/local/bin/docker-entrypoint.sh
ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]
""",
    "prometheus": """
FROM {python}
COPY prometheus /bin/prometheus
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
USER 65534
VOLUME ["/prometheus"]
WORKDIR /prometheus
EXPOSE 9090
ENTRYPOINT ["/bin/prometheus"]
""",
}
_KAFKA_RUN: Final = Path(__file__).parent / "kafka-run.sh"
_API_VERSIONS: Final = """#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -Xmx128m -cp '/opt/kafka/libs/*' org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
"""


def make_stand_ins(buildah: Buildah, images: Mapping[str, str], folder: Path) -> None:
    """Have an image for each service of `images` that is not keyfold's own; what was made in the same way stays."""
    python, java = base_names()
    for service, recipe in _RECIPES.items():
        context = folder / service
        text = recipe.format(python=python, java=java)
        made_of = hashlib.sha256(f"{text}{_KAFKA_RUN.read_text()}{_API_VERSIONS}".encode()).hexdigest()
        made = context / made_of  # there once the image is
        if made.exists() and buildah.has(images[service]):
            continue
        shutil.rmtree(context, ignore_errors=True)
        context.mkdir(parents=True)
        _fill(service, context)
        (context / "Containerfile").write_text(text)
        buildah.build(images[service], context / "Containerfile", context, log=folder / f"{service}.log")
        made.touch()


def _fill(service: str, context: Path) -> None:
    if service == "kafka":
        _kafka(context)
    elif service == "s3":
        shutil.copy(versitygw.PROGRAM.binary(), context / "versitygw")
        shutil.copy(_source(str(versitygw.PROGRAM.source), versitygw.PROGRAM.version) / "docker-entrypoint.sh", context)
    else:
        shutil.copy(prometheus.PROGRAM.binary(), context / "prometheus")


def _kafka(context: Path) -> None:
    libs = context / "libs"
    libs.mkdir()
    for folder in (kafka_jars(default_cache()), jars(KAFKA_TOOLS, default_cache())):
        for jar in folder.glob("*.jar"):
            shutil.copy(jar, libs)
    shutil.copy(_KAFKA_RUN, context / "run")
    (context / "kafka-broker-api-versions.sh").write_text(_API_VERSIONS)


def _source(package: str, version: str) -> Path:
    """The source of the module that a package is of, as the proxy has it."""
    module = "/".join(package.split("/")[:3])
    answer = subprocess.run(
        [find_go("read sources"), "mod", "download", "-json", f"{module}@{version}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(str(json.loads(answer.stdout)["Dir"]))
