"""S3 over TLS as on Amazon: boto3 sends a body in chunks, followed by its checksum.

moto does not check what arrives. This server does: it takes the frames apart and compares the checksum.
"""

from __future__ import annotations

import os
import ssl
import threading
import zlib
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from keyfold.store.api import Create
from keyfold.store.pacing import CHUNK_BYTES
from keyfold.store.s3 import S3Store


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.framed_bytes: list[int] = []
        self.failures_left = 0
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self) -> None:
        framed = self._unchunk() if self.headers["Transfer-Encoding"] == "chunked" else b""
        self.server.framed_bytes.append(len(framed))
        body, checksum = _unframe(framed)
        assert len(body) == int(self.headers["X-Amz-Decoded-Content-Length"])
        assert checksum == zlib.crc32(body)
        self.server.bodies.append(body)
        failing, self.server.failures_left = self.server.failures_left > 0, self.server.failures_left - 1
        self.send_response(503 if failing else 200)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _unchunk(self) -> bytes:
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass


def _unframe(framed: bytes) -> tuple[bytes, int]:
    body, place = b"", 0
    while True:
        end = framed.index(b"\r\n", place)
        size = int(framed[place:end], 16)
        if size == 0:
            trailer = framed[end + 2 :].strip().split(b":", 1)
            assert trailer[0] == b"x-amz-checksum-crc32"
            return body, int.from_bytes(b64decode(trailer[1]), "big")
        body += framed[end + 2 : end + 2 + size]
        place = end + 2 + size + 2


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


class CountingPacer:
    piece_bytes = CHUNK_BYTES

    def __init__(self) -> None:
        self.asked: list[int] = []

    def acquire(self, n_bytes: int) -> None:
        self.asked.append(n_bytes)

    def owe(self, n_bytes: int) -> None:
        """Headers are not counted here."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    certificate, key = _certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    running = Server()
    running.socket = context.wrap_socket(running.socket, server_side=True)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3_000_001])
def test_a_body_arrives_complete_with_its_checksum(server: Server, size: int, paced: bool) -> None:
    data, pacer = os.urandom(size), CountingPacer()
    url = f"https://127.0.0.1:{server.server_port}"
    store = S3Store("bkt", endpoint_url=url, access_key_id="k", secret_access_key="s", pacer=pacer if paced else None)
    store.put("k", data, Create())
    server.failures_left = 1
    store.write_part("k", "u", 1, data)  # sent twice
    store.close()
    assert server.bodies == [data] * 3
    if paced:
        # The frames move too.
        assert sum(pacer.asked) == sum(server.framed_bytes) >= 3 * size
        assert max(pacer.asked) <= CHUNK_BYTES
