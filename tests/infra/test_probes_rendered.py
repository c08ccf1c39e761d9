"""The rendered chart as local processes: they start, their probes match their state, SIGTERM loses nothing.

    the set of values   what of it runs here
    laptop              the sink and the compactor's loop, against one broker and an S3 server with keys
    replica             the replicator, from one bucket to another
    tables              the sync of an Iceberg table
    serve               the server that answers by key

The store is reached through a gate that can be shut. What sets for EKS and for Spark on Kubernetes say of brokers with
TLS, of identities and of executors is not run: test_chart.py has their configurations read by the services.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import requests
import yaml

from keyfold.errors import FirstCopyUnfinished, LogNotFound, ManifestLost
from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore
from tests.support.cleaning import Sink, load, record
from tests.support.helm import VALUE_SETS, one, template
from tests.support.kafka import KafkaBroker, produce_all, synthetic
from tests.support.local_pod import LocalPod, PodEnvironment, verified
from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.proof import Rig, wait_for
from tests.support.rendered import Object
from tests.support.s3_gate import Gate

pytestmark = [pytest.mark.real, pytest.mark.kafka]

KEYS = {"access-key-id": ACCESS_KEY_ID, "secret-access-key": SECRET_ACCESS_KEY}
STORE_AWAY_NOTICED_S = 90.0
"""The services ask a store that is away again for up to a minute."""


@pytest.fixture(scope="module")
def laptop() -> list[Object]:
    return template(VALUE_SETS / "laptop.yaml")


@pytest.fixture
def s3() -> Iterator[LocalS3Process]:
    """Yield a local S3 of its own, because the sets of values name their buckets."""
    with LocalS3Process() as running:
        running.create_bucket("log")
        running.create_bucket("example-log")
        running.create_bucket("log-dr")
        running.create_bucket("example-lake")
        yield running


@pytest.fixture
def gate(s3: LocalS3Process) -> Iterator[Gate]:
    with Gate(s3.url) as opened:
        yield opened


def places(gate: Gate, kafka: str = "") -> PodEnvironment:
    """Return the addresses of the laptop's broker and store."""
    addresses = {"http://s3.keyfold.svc:9000": gate.url, "kafka.keyfold.svc:9092": kafka}
    return PodEnvironment(addresses, {"s3-keys": KEYS})


# The sink


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """Yield an empty broker: the laptop's sink reads all topics, and a group remembers a static member for a while."""
    with KafkaBroker() as running:
        yield running


FOR_EVER = {"retention.ms": "-1"}
"""The records of tests are years old."""


def test_probes_of_a_sink_match_every_state_and_a_stop_loses_nothing(
    laptop: list[Object], own_broker: KafkaBroker, s3: LocalS3Process, gate: Gate, tmp_path: Path
) -> None:
    kafka = own_broker.bootstrap_servers
    own_broker.create_topic("users", 2, FOR_EVER)
    own_broker.create_topic("orders", 1, FOR_EVER)
    pod = LocalPod(laptop, "StatefulSet/kf-keyfold-sink", tmp_path, places(gate, kafka), name="kf-keyfold-sink-0")
    rig = Rig(own_broker, s3, "log", tmp_path)
    with pod:
        with gate.shut():
            pod.starts()
            said = pod.until("readiness", is_good=False, words="has not been read").body
            assert said["status"] == "not ready", "starting: it lives, and waits for the store"
            assert pod.probe("liveness").is_good
        pod.until("readiness", is_good=True)
        assert produce_all(kafka, "users", synthetic(3000, key_count=100)) == 3000
        wait_for(lambda: _end(rig, "users", 2) > 0, 120, "a first segment")
        with gate.shut():
            assert produce_all(kafka, "orders", synthetic(2000, key_count=100, seed=1)) == 2000
            for _ in range(20):
                assert pod.probe("liveness").is_good, "a store that is unavailable is no reason for a restart"
                time.sleep(1)
        pod.until("readiness", is_good=True)
        assert produce_all(kafka, "users", synthetic(3000, key_count=100, seed=2)) == 3000
        assert pod.ends() == 0, pod.said[-3000:]
    assert not pod.probe("liveness").is_good
    with pod:  # what came after the last flush, if it had not been read yet
        pod.starts()
        wait_for(lambda: (_end(rig, "users", 2), _end(rig, "orders")) == (6000, 2000), 120, "all records")
        assert pod.ends() == 0, pod.said[-3000:]
    assert rig.prove("users", 2) == 6000
    assert rig.prove("orders") == 2000
    for topic in ("users", "orders"):
        verified(s3.environment, f"s3://log/topics {topic}")


def _end(rig: Rig, topic: str, partitions: int = 1) -> int:
    """Return the number of offsets in the logs of a topic."""
    try:
        return sum(rig.manifest(topic, partition).next_offset for partition in range(partitions))
    except (LogNotFound, ManifestLost):
        return 0


def test_a_sink_stopped_during_a_store_outage_ends_in_time_and_loses_nothing(
    laptop: list[Object], own_broker: KafkaBroker, s3: LocalS3Process, gate: Gate, tmp_path: Path
) -> None:
    kafka = own_broker.bootstrap_servers
    own_broker.create_topic("late", 1, FOR_EVER)
    pod = LocalPod(laptop, "StatefulSet/kf-keyfold-sink", tmp_path, places(gate, kafka), name="kf-keyfold-sink-0")
    rig = Rig(own_broker, s3, "log", tmp_path)
    with pod:
        pod.starts()
        pod.until("readiness", is_good=True)
        assert produce_all(kafka, "late", synthetic(1000, key_count=100, seed=3)) == 1000
        with gate.shut():
            pod.told_to_end()
            assert pod.probe("liveness").is_good, "stopping"
            assert pod.ended() in {0, 1}
    with pod:
        pod.starts()
        wait_for(lambda: _end(rig, "late") == 1000, 120, "all records")
        assert pod.ends() == 0
    assert rig.prove("late") == 1000


def test_a_sink_with_a_permanent_error_is_alive_and_not_ready(
    laptop: list[Object], own_broker: KafkaBroker, s3: LocalS3Process, gate: Gate, tmp_path: Path
) -> None:
    kafka = own_broker.bootstrap_servers
    own_broker.create_topic("again", 1, FOR_EVER)
    pod = LocalPod(laptop, "StatefulSet/kf-keyfold-sink", tmp_path, places(gate, kafka), name="kf-keyfold-sink-0")
    rig = Rig(own_broker, s3, "log", tmp_path)
    produce_all(kafka, "again", synthetic(100, key_count=10))
    with pod:
        pod.starts()
        wait_for(lambda: _end(rig, "again") == 100, 120, "all records")
        assert pod.ends() == 0
    own_broker.delete_topic("again")
    own_broker.create_topic("again", 1, FOR_EVER)
    produce_all(kafka, "again", synthetic(300, key_count=10))
    with pod:
        pod.starts()
        pod.until("readiness", is_good=False, words="has failed")
        assert pod.probe("liveness").is_good, "a restart would not help"
        assert pod.ends() in {0, 1}


def test_a_topic_added_by_an_upgrade_is_read(
    own_broker: KafkaBroker, s3: LocalS3Process, gate: Gate, tmp_path: Path
) -> None:
    """Kafka gives a returning static member its old partitions, whatever it subscribes to (KAFKA-12759)."""
    kafka = own_broker.bootstrap_servers
    rig = Rig(own_broker, s3, "log", tmp_path)
    values = yaml.safe_load((VALUE_SETS / "laptop.yaml").read_text())
    del values["sink"]["config"]["topics.regex"]
    for topics in ("users", "users,orders"):
        added = topics.split(",")[-1]
        own_broker.create_topic(added, 1, FOR_EVER)
        assert produce_all(kafka, added, synthetic(100, key_count=10)) == 100
        values["sink"]["config"]["topics"] = topics
        rendered = template(values)
        owner, name = "StatefulSet/kf-keyfold-sink", "kf-keyfold-sink-0"
        with LocalPod(rendered, owner, tmp_path / topics, places(gate, kafka), name=name) as pod:
            pod.starts()
            wait_for(lambda added=added: _end(rig, added) == 100, 120, f"the records of {added}")  # type: ignore[misc]  # mypy does not infer a lambda with a default
            assert pod.ends() == 0


# The compactor


@pytest.mark.spark
def test_probes_of_a_compactor_match_every_state_and_it_cleans(
    laptop: list[Object], s3: LocalS3Process, gate: Gate, tmp_path: Path
) -> None:
    store = s3.location("log").open()
    pod = LocalPod(laptop, "Deployment/kf-keyfold-compactor", tmp_path, places(gate), name="kf-keyfold-compactor-0")
    try:
        with pod:
            with gate.shut():
                pod.starts()
                pod.until("readiness", is_good=False, words="has not answered yet: ")
                assert pod.probe("liveness").is_good
            pod.until("readiness", is_good=True, within_s=STORE_AWAY_NOTICED_S)
            assert pod.probe("liveness").is_good
            with gate.shut():
                pod.until("readiness", is_good=False, words="has not answered for", within_s=STORE_AWAY_NOTICED_S)
                assert pod.probe("liveness").is_good
            pod.until("readiness", is_good=True, within_s=STORE_AWAY_NOTICED_S)
            sink = Sink.open(store, Place("topics", "users", 0), clock=SystemClock())
            sink.append([record(0, "a", "1"), record(1, "a", "2")])
            wait_for(lambda: load(store).first_dirty_offset == 2, 240, f"a pass: {pod.said[-2000:]}")
            assert [s.record_count for s in load(store).segments] == [1]
            pod.until("readiness", is_good=True)
            assert pod.ends() == 0, pod.said[-3000:]
        said = [json.loads(line) for line in pod.said.splitlines() if line.startswith("{")]
        assert [each["partitions_cleaned"] for each in said if "partitions_cleaned" in each] == [1]
        verified(s3.environment, "s3://log/topics users")
    finally:
        store.close()


def test_a_compactor_without_spark_is_not_ready(s3: LocalS3Process, gate: Gate, tmp_path: Path) -> None:
    values = yaml.safe_load((VALUE_SETS / "laptop.yaml").read_text())
    values["compactor"]["config"]["compactor.engine"] = "spark"  # by default this process does so small a run
    store = s3.location("log").open()
    try:
        Sink.open(store, Place("topics", "users", 0), clock=SystemClock()).append([record(0, "a", "1")])
    finally:
        store.close()
    here = places(gate)
    broken = PodEnvironment(here.addresses, here.secrets, {"JAVA_HOME": str(tmp_path / "no-java")})
    pod = LocalPod(template(values), "Deployment/kf-keyfold-compactor", tmp_path, broken, name="kf-keyfold-compactor-0")
    with pod:
        pod.starts()
        pod.until("readiness", is_good=False, words="the last run failed: Spark")
        assert pod.probe("liveness").is_good
        assert pod.ends() == 0, pod.said[-3000:]


def test_a_compactor_that_never_reached_its_store_can_be_stopped(
    laptop: list[Object], gate: Gate, tmp_path: Path
) -> None:
    pod = LocalPod(laptop, "Deployment/kf-keyfold-compactor", tmp_path, places(gate), name="kf-keyfold-compactor-0")
    with pod, gate.shut():
        pod.starts()
        pod.until("readiness", is_good=False, words="has not answered yet: ")
        assert pod.ends() == 0
    assert "Traceback" not in pod.said


# The replicator


def test_probes_of_a_replicator_match_every_state(s3: LocalS3Process, gate: Gate, tmp_path: Path) -> None:
    environment = {**s3.environment, "AWS_ENDPOINT_URL": gate.url}
    given = PodEnvironment(secrets={"keyfold-dr": KEYS}, environment=environment)
    rendered = template(VALUE_SETS / "replica.yaml")
    pod = LocalPod(rendered, "Deployment/kf-keyfold-replica", tmp_path, given, name="kf-keyfold-replica-0")
    store, there = s3.location("example-log").open(), s3.location("log-dr").open()
    try:
        sink = Sink.open(store, Place("topics", "users", 0), clock=SystemClock())
        sink.append([record(0, "a", "1"), record(1, "a", "2")])
        _registered(pod, s3)
        with pod:
            with gate.shut():
                pod.starts()
                pod.until("readiness", is_good=False, words="has not answered yet")
                assert pod.probe("liveness").is_good
            pod.until("readiness", is_good=True)
            wait_for(lambda: _next_offset(there) == 2, 120, "the first records")
            with gate.shut():
                pod.until("readiness", is_good=False, words="has not answered for", within_s=STORE_AWAY_NOTICED_S)
                assert pod.probe("liveness").is_good
            pod.until("readiness", is_good=True, within_s=STORE_AWAY_NOTICED_S)
            sink.append([record(2, "b", "1")])
            wait_for(lambda: _next_offset(there) == 3, 120, "the next record")
            assert pod.ends() == 0, pod.said[-3000:]
        verified(s3.environment, "s3://log-dr/topics users")
    finally:
        store.close()
        there.close()


def test_probes_of_a_table_match_every_state(s3: LocalS3Process, gate: Gate, tmp_path: Path) -> None:
    values = yaml.safe_load((VALUE_SETS / "tables.yaml").read_text())
    values["table"]["intervalSeconds"] = 1
    given = PodEnvironment(
        secrets={"keyfold-catalog": {"credential": ""}}, environment={**s3.environment, "AWS_ENDPOINT_URL": gate.url}
    )
    pod = LocalPod(template(values), "Deployment/kf-keyfold-table-users", tmp_path, given, name="kf-keyfold-table-0")
    store = s3.location("example-log").open()
    try:
        sink = Sink.open(store, Place("topics", "users", 0), clock=SystemClock())
        sink.append([record(0, "a", "1"), record(1, "b", "2")])
        with pod:
            pod.starts()
            pod.until("readiness", is_good=True)
            wait_for(lambda: _added_rows(pod) == 2, 120, "the first rows")
            with gate.shut():
                pod.until("readiness", is_good=False, within_s=STORE_AWAY_NOTICED_S)
                assert pod.probe("liveness").is_good
            pod.until("readiness", is_good=True, within_s=STORE_AWAY_NOTICED_S)
            sink.append([record(2, "c", "3")])
            wait_for(lambda: _added_rows(pod) == 3, 120, "the next row")
            assert pod.ends() == 0, pod.said[-3000:]
    finally:
        store.close()
    assert "Traceback" not in pod.said
    verified(s3.environment, "s3://example-log/topics users s3://example-lake/tables/users", of="table")


def _added_rows(pod: LocalPod) -> float:
    """Return how many rows the pod has added to its table."""
    text = requests.get(f"http://127.0.0.1:{pod.ports[9406]}/metrics", timeout=30).text
    (line,) = (each for each in text.splitlines() if each.startswith('keyfold_table_rows_total{change="added"'))
    return float(line.split()[-1])


def test_a_server_answers_those_who_have_the_token(s3: LocalS3Process, tmp_path: Path) -> None:
    given = PodEnvironment(environment=s3.environment)
    rendered = template(VALUE_SETS / "serve.yaml")
    token = base64.b64decode(one(rendered, "Secret", "kf-keyfold-serve")["data"]["token"]).decode()
    pod = LocalPod(rendered, "Deployment/kf-keyfold-serve", tmp_path, given, name="kf-keyfold-serve-0")
    store = s3.location("example-log").open()
    try:
        Sink.open(store, Place("topics", "users", 0), clock=SystemClock()).append([record(0, "a", "1")])
    finally:
        store.close()
    with pod:
        pod.starts()
        assert pod.probe("readiness").is_good
        url = f"http://127.0.0.1:{pod.ports[8090]}/topics/users/keys/a"
        assert requests.get(url, timeout=30).status_code == HTTPStatus.UNAUTHORIZED
        answer = requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        assert (answer.status_code, answer.content) == (HTTPStatus.OK, b"1")
        assert pod.ends() == 0, pod.said[-3000:]


def _registered(pod: LocalPod, s3: LocalS3Process) -> None:
    """Run the command of the chart's notes in the pod itself."""
    config = next(word for word in pod.command if word.endswith("replica.json"))
    words = ["replica", "add", config, "dr", "--to", "s3://log-dr/topics", "--region", "us-east-1"]
    keys = ["--access-key-id", "${env:DR_KEY_ID}", "--secret-access-key", "${env:DR_SECRET}"]
    answer = subprocess.run(
        [pod.command[0], *words, *keys],
        env={**pod.environment, **s3.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _next_offset(store: ObjectStore) -> int:
    try:
        return load(store).next_offset
    except (LogNotFound, FirstCopyUnfinished):
        return 0
