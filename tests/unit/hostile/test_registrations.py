"""A forged registration of a replica: it names its author's endpoint, and secrets of the process that reads it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import ConfigError
from keyfold.replicas.documents import Registration, registration_key
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import ObjectStore, StoreLocation
from keyfold.store.pacing import Pacer
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.replicating import replicating
from keyfold_replicator.registry.open_replica import side
from keyfold_replicator.registry.replica_pair import ReplicaSettings
from keyfold_replicator.rounds.service import Replication, ReplicationContext
from tests.support.hostile import plant
from tests.support.logs import records
from tests.support.replica_command import SOURCE, Buckets, made_log, read

SECRET = "hunter22-of-payroll"
SETTINGS = ReplicaSettings(threads=2, retry_timeout_s=1)


@dataclass
class Endpoint:
    """An attacker's HTTP server, and the requests that reached it."""

    url: str
    seen: list[str] = field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    class Recording(BaseHTTPRequestHandler):
        def answer(self) -> None:
            found.seen.append(f"{self.path}\n{self.headers}")
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names of the base

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the overridden name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    found = Endpoint(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def buckets() -> Buckets:
    found = Buckets()
    made_log(found)
    return found


def forge(buckets: Buckets, config: Mapping[str, str], name: str = "dr") -> None:
    """Change a registration as an attacker who may write this one object."""
    store = buckets["log"]
    ReplicaRegistry(store, "topics", SystemClock(), Random(6)).add(
        Registration(name, {"s3.bucket.name": f"{name}-of-before"})
    )
    key = registration_key("topics", name)
    document = json.loads(store.get(key).data)
    plant(store, key, json.dumps({**document, "config": dict(config)}).encode())


def opener(buckets: Buckets) -> Callable[[StoreLocation, Pacer | None], ObjectStore]:
    """Open the forged replica's bucket by its endpoint, and all others in memory."""

    def opened(location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
        return location.open(pacer) if location.bucket == "far" else buckets.open(location, pacer)

    return opened


# What somebody who may write a registration tries


@dataclass(frozen=True)
class Attack:
    """What a registration says, and which key and name a refusal has to repeat."""

    config: Mapping[str, str]
    key: str
    name: str


def keys(placeholder: str) -> dict[str, str]:
    return {"aws.access.key.id": placeholder, "aws.secret.access.key": placeholder}


def variable(endpoint: Endpoint, _folder: Path) -> Attack:
    config = {"store.url": endpoint.url, **keys("${env:PAYROLL_SECRET}")}
    return Attack(config, "aws.access.key.id", "PAYROLL_SECRET")


def properties_file(endpoint: Endpoint, folder: Path) -> Attack:
    path = folder / "payroll.properties"
    path.write_text(f"secret={SECRET}\n")
    return Attack({"store.url": endpoint.url, **keys(f"${{file:{path}:secret}}")}, "aws.access.key.id", str(path))


def endpoint_with_a_variable(endpoint: Endpoint, _folder: Path) -> Attack:
    config = {"store.url": endpoint.url + "/${env:PAYROLL_SECRET}", **keys("${env:KEYFOLD_REPLICA_KEY}")}
    return Attack(config, "store.url", "which only credentials may have")


def profile(endpoint: Endpoint, _folder: Path) -> Attack:
    return Attack({"store.url": endpoint.url, "aws.profile": "payroll"}, "aws.profile", "payroll")


ATTACKS = [variable, properties_file, endpoint_with_a_variable, profile]


@pytest.fixture(params=ATTACKS)
def attack(
    request: pytest.FixtureRequest, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Attack:
    monkeypatch.setenv("PAYROLL_SECRET", SECRET)
    monkeypatch.setenv("KEYFOLD_REPLICA_KEY", "of-the-replica")
    (tmp_path / "credentials").write_text(f"[payroll]\naws_access_key_id={SECRET}\naws_secret_access_key=x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    made: Attack = request.param(endpoint, tmp_path)
    return made


# Who reads it; each returns what is shown to people


Reader = Callable[[Buckets, pytest.CaptureFixture[str]], str]


def replicator(buckets: Buckets, _capture: pytest.CaptureFixture[str]) -> str:
    means = ReplicationContext(SETTINGS, SystemClock(), Random(5), "here:1", opener=opener(buckets))
    return Replication(side(buckets["log"], "topics"), means, names=("dr",)).once()["dr"].error


def compactor(buckets: Buckets, _capture: pytest.CaptureFixture[str]) -> str:
    options = CompactOptions.parse({"s3.bucket.name": "log", "replicas.run": "true"})
    with replicating(options, clock=SystemClock(), random=Random(3), opener=opener(buckets)) as replicate:
        return "\n".join(replicate(lambda: False)[0].lines)


def command(*words: str) -> Reader:
    def reader(buckets: Buckets, capture: pytest.CaptureFixture[str]) -> str:
        world = CliContext(lambda _: (buckets["log"], "topics"), SystemClock(), Random(11), opener(buckets))
        run(["replica", *words], world)
        said = capture.readouterr()
        return said.out + said.err

    return reader


READERS = {
    "replicator": replicator,
    "compactor": compactor,
    **{
        " ".join(words[:1]): command(*words)
        for words in (
            ("status", SOURCE, "dr"),
            ("run", SOURCE, "--once"),
            ("resync", SOURCE, "dr"),
            ("promote", SOURCE, "dr", "--dry-run"),
            ("enable-compaction", SOURCE, "dr"),
            ("disable-compaction", SOURCE, "dr"),
            ("edit", SOURCE, "dr", "--topics", "users"),
        )
    },
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_forged_registration_obtains_no_secret_of_its_reader(
    reader: Reader, attack: Attack, buckets: Buckets, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(buckets, {"s3.bucket.name": "far", "s3.region": "us-east-1", **attack.config})
    said = reader(buckets, capsys)
    leaked = [request for request in endpoint.seen if SECRET in request]
    assert (leaked, len(endpoint.seen)) == ([], 0)
    assert f"`{attack.key}`" in said
    assert attack.name in said
    assert SECRET not in said + "".join(str(buckets["log"].get(found.key).data) for found in buckets["log"].list(""))


def test_other_replicas_continue_beside_a_forged_one(
    buckets: Buckets, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYROLL_SECRET", SECRET)
    forge(buckets, {"s3.bucket.name": "far", "store.url": endpoint.url, **keys("${env:PAYROLL_SECRET}")})
    forge(buckets, {"s3.bucket.name": "good"}, "good")
    means = ReplicationContext(SETTINGS, SystemClock(), Random(5), "here:1", opener=opener(buckets))
    found = Replication(side(buckets["log"], "topics"), means).once()
    assert (bool(found["dr"].error), found["good"].error) == (True, "")
    assert read(buckets, "good") == records("a=1 b=1 a=2")
    assert endpoint.seen == []


# What a process allows


def test_a_credential_that_a_process_allows_reaches_the_replica(
    buckets: Buckets, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DR_KEY_ID", "of-the-replica")
    (tmp_path / "dr.properties").write_text("secret=of-the-replica-too\n")
    config = {"s3.bucket.name": "far", "s3.region": "us-east-1", "store.url": endpoint.url}
    config |= {"aws.access.key.id": "${env:DR_KEY_ID}"}
    config |= {"aws.secret.access.key": f"${{file:{tmp_path}/dr.properties:secret}}"}
    forge(buckets, config)
    allowed = {"replica.env.allowlist.pattern": "DR_.*", "replica.file.allowed.paths": str(tmp_path)}
    (tmp_path / "replicate.json").write_text(json.dumps({"s3.bucket.name": "log", **allowed}))
    options = CompactOptions.parse({"s3.bucket.name": "log", "replicas.run": "true", **allowed})
    with replicating(options, clock=SystemClock(), random=Random(3), opener=opener(buckets)) as replicate:
        replicate(lambda: False)
    assert "Credential=of-the-replica/" in endpoint.seen[-1]
    for words in ("status", "dr"), ("run", "--once"), ("promote", "dr", "--dry-run"), ("resync", "dr"):
        endpoint.seen.clear()
        command(words[0], str(tmp_path / "replicate.json"), *words[1:])(buckets, capsys)
        assert "Credential=of-the-replica/" in endpoint.seen[-1], words


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("way", ["beside", "dots", "link"])
def test_a_file_outside_the_allowed_folder_is_neither_read_nor_revealed(
    tmp_path: Path, way: str, is_there: bool
) -> None:
    inside, outside = tmp_path / "allowed", tmp_path / "allowed-not" / "payroll.properties"
    inside.mkdir()
    (inside / "link").symlink_to(outside.parent)
    if is_there:
        outside.parent.mkdir()
        outside.write_text(f"secret={SECRET}\n")
    path = {"beside": str(outside), "dots": f"{inside}/../{outside.parent.name}/{outside.name}"}
    path |= {"link": f"{inside}/link/{outside.name}"}
    registration = Registration("dr", {"s3.bucket.name": "far", **keys(f"${{file:{path[way]}:secret}}")})
    with pytest.raises(ConfigError) as refused:
        registration.location({}, AllowedCredentials(paths=(str(inside),)))
    assert str(refused.value) == (
        f"`aws.access.key.id`: the registration of replica `dr` names the file `{path[way]}`, which "
        f"`replica.file.allowed.paths` does not allow here; allowed are files in {inside}; name one of them, or set "
        "`replica.file.allowed.paths` in the configuration file of the process, which commands take as SOURCE"
    )


@pytest.mark.parametrize(
    "named", ["${env:KEYFOLD_REPLICA_\ud800}", "${file:/allowed/\0:k}", "${file:/allowed/\ud800:k}"]
)
def test_an_unknown_placeholder_source_is_refused(named: str) -> None:
    registration = Registration("dr", {"s3.bucket.name": "far", **keys(named)})
    with pytest.raises(ConfigError, match="does not allow"):
        registration.location({}, AllowedCredentials(paths=("/allowed",)))
