"""A real kube-apiserver over a real etcd, on loopback: no nodes, no controllers, only the API and all that it refuses.

    with KubeApiserver() as kube:
        kube.namespace("keyfold", level="restricted")      Pod Security admission enforces, warns and audits
        kube.apply(deployment)                              server-side apply, unknown fields refused
        kube.create(pod)
        kube.may(User("keyfold", "kf-keyfold-sink"), Access("get", "secrets"))
        kube.deeds(User("keyfold", "kf-keyfold-compactor"))  what an account has asked for, by the server's audit log

Both are built by Go from `tests/support/go/kube`, which pins them with all that they are made of, by hash, and kept in
the cache. RBAC decides, service accounts have tokens that the server signs; no controller runs, so nothing that is
applied makes anything else: who wants to see pods judged creates them himself. Tests that use it carry
`@pytest.mark.kube`.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent, end, free_port
from tests.support.go_program import SOURCES, GoProgram, required_version

Object = dict[str, Any]

_START_TIMEOUT_S: Final = 180.0
_STARTS: Final = 3
_DEFINE_TIMEOUT_S: Final = 60.0
_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
_FIELD_MANAGER: Final = "keyfold"
_ASK_TIMEOUT_S: Final = 60.0
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_WARNING: Final = re.compile(r'^\d{3} \S+ "((?:[^"\\]|\\.)*)"')


def _program() -> GoProgram:
    folder, said = SOURCES / "kube", "k8s.io/component-base/version"
    version = required_version(folder, "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    flags = f"-s -w -X {said}.gitVersion={version} -X {said}.gitMajor={major} -X {said}.gitMinor={minor}"
    return GoProgram("kube", version, folder, ldflags=tuple(flags.split()))


PROGRAM: Final = _program()
"""etcd and kube-apiserver."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: the object or a Status, and its warnings."""

    status: int
    body: Object
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it did what it was asked."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        why = "" if self.is_good else f": {self.body.get('message', self.body)}"
        return f"{self.status}{why}{''.join(f'; warning: {each}' for each in self.warnings)}"


@dataclass(frozen=True, slots=True)
class Access:
    """Something to do with resources, `pods` or `pods/exec`, of the core group or another; `namespace` "": anywhere."""

    verb: str
    resource: str
    group: str = ""
    namespace: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """A service account, as the server knows it when it shows its token."""

    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        """Its name as a user."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        """Every service account is in these."""
        return ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]


@dataclass(frozen=True, slots=True)
class Deed:
    """What a service account asked for, and the status that it was answered; a path that is no resource is one here."""

    access: Access
    status: int


class KubeApiserver:
    """One server with its etcd; its data in a temporary folder. `log_text` says what both had to say."""

    def __init__(self, cache: Path | None = None) -> None:
        self._binary = PROGRAM.binary(cache)
        self._folder = Path()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._token = secrets.token_hex(16)
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}
        self.port = 0
        self.certificate = Path()
        """Who trusts it can prove that he talks to this server: a pod has it as ca.crt beside its token."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="keyfold-kube-"))
        try:
            for _ in range(_STARTS):
                if self._start():
                    return self
            raise KeyfoldError(f"kube-apiserver did not start:\n{self.log_text[-4000:]}")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def log_text(self) -> str:
        """Of the last start."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    @property
    def _audit(self) -> Path:
        return self._folder / "audit"

    # Starting

    def _start(self) -> bool:
        """One try, on fresh ports; False where a process ended or the server was not ready in time."""
        self._stop()
        run = Path(tempfile.mkdtemp(dir=self._folder))
        client, peer, self.port = free_port(), free_port(), free_port()
        etcd_url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self._launch(
            "etcd",
            f"--data-dir={run / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._launch("apiserver", *self._server_flags(run, etcd_url))
        self.certificate = run / "certificates" / "apiserver.crt"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and all(process.poll() is None for process in self._processes):
            if self._is_ready(self.certificate):
                return True
            time.sleep(0.2)
        return False

    def _server_flags(self, run: Path, etcd_url: str) -> list[str]:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private, public, tokens = run / "accounts.key", run / "accounts.pub", run / "tokens.csv"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        tokens.write_text(f'{self._token},tests,tests,"system:masters"\n')
        policy = run / "audit.json"
        policy.write_text(json.dumps(_AUDIT))
        return [
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={run / 'certificates'}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit}",
            "--v=0",
        ]

    def _launch(self, program: str, *flags: str) -> None:
        with (self._folder / f"{program}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*death_with_parent(), str(self._binary), program, *flags],
                    cwd=self._folder,
                    env={"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _is_ready(self, certificate: Path) -> bool:
        if not certificate.is_file():
            return False
        try:
            self._context = ssl.create_default_context(cafile=str(certificate))
            return self._ask("GET", "/readyz").is_good
        except (OSError, ssl.SSLError):
            return False

    def _stop(self) -> None:
        for process in reversed(self._processes):
            end(process, retry_timeout_s=10)
        self._processes = []

    # Asking

    def namespace(self, name: str, *, level: str = "restricted") -> str:
        """Make a namespace in which Pod Security admission enforces a level, warns and audits."""
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn", "audit")}
        made = self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        assert made.is_good, made
        return name

    def apply(self, wanted: Mapping[str, Any], *, is_trial: bool = False) -> Answer:
        """Server-side apply; a field that the server does not know is an error. `is_trial` changes nothing."""
        query = {"fieldManager": _FIELD_MANAGER, "fieldValidation": "Strict"} | ({"dryRun": "All"} if is_trial else {})
        path = f"{self._path(wanted)}/{wanted['metadata']['name']}"
        return self._ask("PATCH", path, query, wanted, content_type="application/apply-patch+yaml")

    def create(self, wanted: Mapping[str, Any], *, token: str | None = None) -> Answer:
        """POST; a field that the server does not know is an error."""
        return self._ask("POST", self._path(wanted), {"fieldValidation": "Strict"}, wanted, token=token)

    def delete(self, there: Mapping[str, Any]) -> Answer:
        """DELETE, at once."""
        path = f"{self._path(there)}/{there['metadata']['name']}"
        return self._ask("DELETE", path, {"gracePeriodSeconds": "0"})

    def get(self, path: str, *, token: str | None = None) -> Answer:
        """GET of a path."""
        return self._ask("GET", path, token=token)

    def post(self, path: str, wanted: Mapping[str, Any]) -> Answer:
        """POST to a path, for what is no object of its own: a pod's binding to a node."""
        return self._ask("POST", path, {}, wanted)

    def patch(self, path: str, change: Mapping[str, Any]) -> Answer:
        """Merge a change into what is at a path."""
        return self._ask("PATCH", path, {}, change, content_type="application/merge-patch+json")

    def delete_at_once(self, path: str, uid: str) -> Answer:
        """Take away one object and no later one of its name: what a kubelet does when a pod has ended."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "gracePeriodSeconds": 0}
        return self._ask("DELETE", path, {}, options)

    def watch(self, path: str, version: str, window_s: int) -> Iterator[Object]:
        """The changes of what is at a path, after this version of the list, as they come: objects with `type`."""
        query = urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": str(window_s)})
        with self._open(urllib.request.Request(f"{self.url}{path}?{query}")) as answer:
            for line in answer:
                yield json.loads(line)

    def deeds(self, user: User) -> list[Deed]:
        """All that an account has asked for since the server started, in the order of the answers."""
        said = [json.loads(line) for line in self._audit.read_text().splitlines()] if self._audit.exists() else []
        return [_deed(each) for each in said if each["user"]["username"] == user.full_name]

    def may(self, user: User, access: Access) -> bool:
        """What RBAC says of a service account (SubjectAccessReview); in its own namespace where none is given."""
        resource, _, subresource = access.resource.partition("/")
        attributes = {
            "verb": access.verb,
            "group": access.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": user.namespace if access.namespace is None else access.namespace,
            "name": access.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user.full_name, "groups": user.groups, "resourceAttributes": attributes},
        }
        answer = self.create(review)
        assert answer.is_good, answer
        return bool(answer.body["status"]["allowed"])

    def token(self, user: User) -> str:
        """A token of a service account, as a kubelet mounts it."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{user.namespace}/serviceaccounts/{user.name}/token"
        answer = self._ask("POST", path, {}, request)
        assert answer.is_good, answer
        return str(answer.body["status"]["token"])

    def define(self, definition: Mapping[str, Any]) -> None:
        """Register a foreign resource, and wait until every version of it is served."""
        made = self.apply(definition)
        assert (made.is_good, made.warnings) == (True, ()), made
        spec, name = definition["spec"], definition["metadata"]["name"]
        plural, group = spec["names"]["plural"], spec["group"]
        lists = [f"/apis/{group}/{each['name']}/{plural}" for each in spec["versions"] if each["served"]]
        deadline = time.monotonic() + _DEFINE_TIMEOUT_S
        while not (self._is_established(name) and all(self.get(each).is_good for each in lists)):
            assert time.monotonic() < deadline, f"{name} is not served"
            time.sleep(0.2)

    def _is_established(self, name: str) -> bool:
        found = self.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}").body
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"] or ()}  # null for a moment
        return conditions.get("NamesAccepted") == conditions.get("Established") == "True"

    def _path(self, wanted: Mapping[str, Any]) -> str:
        """Where objects of that sort are."""
        api, kind = wanted["apiVersion"], wanted["kind"]
        plural, is_namespaced = self._resource(api, kind)
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        place = f"/namespaces/{wanted['metadata']['namespace']}" if is_namespaced else ""
        return f"{root}{place}/{plural}"

    def _resource(self, api: str, kind: str) -> tuple[str, bool]:
        """The plural of a kind, and whether it lives in namespaces: the server says so itself."""
        deadline = time.monotonic() + 60
        while (api, kind) not in self._resources:  # what was defined a moment ago is listed a moment later
            found = self.get(f"/apis/{api}" if "/" in api else f"/api/{api}")
            for each in found.body.get("resources", ()):
                if "/" not in each["name"]:
                    self._resources[api, each["kind"]] = (each["name"], each["namespaced"])
            assert (api, kind) in self._resources or time.monotonic() < deadline, f"{api} {kind} is not served: {found}"
            time.sleep(0 if (api, kind) in self._resources else 0.2)
        return self._resources[api, kind]

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
    ) -> Answer:
        request = urllib.request.Request(
            f"{self.url}{path}{'?' + urlencode(query) if query else ''}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type},
        )
        try:
            with self._open(request, token) as answer:
                return _answer(answer.status, answer.read(), answer.headers.get_all("Warning") or [])
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), error.headers.get_all("Warning") or [])

    def _open(self, request: urllib.request.Request, token: str | None = None) -> http.client.HTTPResponse:
        request.add_header("Authorization", f"Bearer {token or self._token}")
        answer: http.client.HTTPResponse = urllib.request.urlopen(
            request, timeout=_ASK_TIMEOUT_S, context=self._context
        )
        return answer


def _deed(event: Object) -> Deed:
    """Of an event of the audit log."""
    what = event.get("objectRef", {"resource": event["requestURI"]})
    resource = "/".join(what[key] for key in ("resource", "subresource") if what.get(key))
    access = Access(event["verb"], resource, what.get("apiGroup", ""), what.get("namespace"), what.get("name", ""))
    return Deed(access, event.get("responseStatus", {}).get("code", 0))


def _answer(status: int, data: bytes, warnings: Sequence[str]) -> Answer:
    try:
        body = json.loads(data)
    except ValueError:  # "ok" of a probe, "404 page not found" of a path that nobody serves yet
        body = {"message": data.decode().strip()}
    return Answer(status, body, tuple(found[1] for each in warnings if (found := _WARNING.match(each)) is not None))
