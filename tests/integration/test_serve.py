"""`keyfold serve` as a process: a thousand clients at once, hostile requests, a token, a quick end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from keyfold.http_server.guard import OPEN_PATHS
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.runtime.clock import SystemClock
from tests.support.logs import MadeLog
from tests.support.moto import LocalS3Process

BUCKET = "serve"
KEYS = 2000
CLIENTS = 1000
REQUESTS = 3
TOKEN = "s3cret"


def value_of(number: int) -> bytes:
    return b"value-%d-" % number + b"x" * (number % 700)


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3Process]:
    with LocalS3Process() as running:
        running.create_bucket(BUCKET)
        store = running.location(BUCKET).open()
        made = MadeLog(store=store, place=Place("topics", "users", 0), clock=SystemClock(), block_bytes=16384)
        for first in range(0, KEYS, 500):
            batch = [Record(n, 1, CREATE_TIME, b"key-%d" % n, value_of(n)) for n in range(first, first + 500)]
            made.append(batch)
        store.close()
        yield running


@contextmanager
def server(s3: LocalS3Process, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a user starts it; its address, and its process."""
    command = [f"{Path(sys.executable).parent}/keyfold", "serve", f"s3://{BUCKET}/topics", "--listen"]
    process = subprocess.Popen(
        [*command, "http://127.0.0.1:0", *arguments],
        env={**os.environ, **s3.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^\s\"]+", process.stdout.readline())
        assert found is not None, process.stderr.read() if process.stderr else ""
        yield found[0], process
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=15)
        assert "Traceback" not in said, said
    finally:
        process.kill()
        process.wait()


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def client(host: str, port: int, random: Random, wrong: list[str]) -> None:
    """Some requests over one connection; what is not the right value goes into `wrong`."""
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(REQUESTS):
        number = random.randrange(KEYS * 11 // 10)
        writer.write(b"GET /topics/users/keys/key-%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % number)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        found = re.search(r"content-length: (\d+)", head)
        body = await reader.readexactly(int(found[1])) if found else b""
        expected = (200, value_of(number)) if number < KEYS else (404, body)
        if (int(head.split()[1]), body) != expected:
            wrong.append(f"key-{number}: {head.splitlines()[0]} {body[:100]!r}")
    writer.close()


@pytest.mark.full
def test_a_thousand_clients_at_once_get_the_right_values(s3: LocalS3Process) -> None:
    async def all_clients(port: int) -> list[str]:
        wrong: list[str] = []
        ask = (client("127.0.0.1", port, Random(number), wrong) for number in range(CLIENTS))
        await asyncio.gather(*ask)
        return wrong

    with server(s3) as (url, process):
        assert urlopen(f"{url}/topics/users/keys/key-0").read() == value_of(0)
        before = rss_bytes(process.pid)
        assert asyncio.run(all_clients(urlsplit(url).port or 0)) == []
        assert rss_bytes(process.pid) - before < 300_000_000


KEY_1 = b"/topics/users/keys/key-1"
RECORDS = b"/ui/topics/users/records"
HOSTILE = [
    (b"GET", KEY_1, b"X" * 70_000 + b": 1\r\n", b""),
    (b"GET", b"/topics/users/keys/\x00\xff", b"", b""),
    (b"GET", b"/topics/%2e%2e/%2e%2e/keys/a", b"", b""),
    (b"GET", b"//topics//users//keys", b"", b""),
    (b"BREW", KEY_1, b"", b""),
    (b"DELETE", KEY_1, b"", b""),
    (b"POST", b"/topics/users/keys", b"Content-Length: 9999999999\r\n", b"{}"),
    (b"POST", b"/topics/users/keys", b"Content-Type: application/json\r\nContent-Length: 9\r\n", b'{"keys":['),
    (b"GET", RECORDS + b"?partition=0&offset=99999999999999999999", b"", b""),
    (b"GET", RECORDS + b"?partition=x", b"", b""),
    (b"GET", KEY_1 + b"?partition=99999999999", b"", b""),
    (b"\x16\x03\x01\x02", b"\x00", b"", b""),
    (b"GET", KEY_1, b"Host: evil.example\r\n", b""),
]


@pytest.mark.full
def test_hostile_requests_are_refused_and_the_server_goes_on(s3: LocalS3Process) -> None:
    with server(s3) as (url, _):
        for method, path, headers, body in HOSTILE:
            host = b"" if b"Host:" in headers else b"Host: 127.0.0.1\r\n"
            sent = method + b" " + path + b" HTTP/1.1\r\n" + host + headers + b"\r\n" + body
            with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=20) as made:
                made.sendall(sent)
                made.shutdown(socket.SHUT_WR)
                said = made.recv(65536)
            assert b" 500 " not in said.partition(b"\r\n")[0], sent[:100]
            assert not said.startswith(b"HTTP/1.1 2"), sent[:100]
        assert urlopen(f"{url}/topics/users/keys/key-7").read() == value_of(7)


def asked(port: int, path: str, authorization: str) -> tuple[int, bytes]:
    """The status and the body of a request by any host name."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": "x", "Authorization": authorization})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.full
def test_nothing_can_be_read_without_the_token(s3: LocalS3Process, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with server(s3, "--token-file", str(tmp_path / "token")) as (url, _):
        port = urlsplit(url).port or 0
        _, document = asked(port, "/openapi.json", f"Bearer {TOKEN}")
        pages = ["/", "/ui/sinks", "/ui/topics/users", "/ui/topics/users/key?key=a", "/openapi.json", "/nosuch"]
        for path in {*json.loads(document)["paths"], *pages} - OPEN_PATHS:
            for authorization in ("", "Bearer wrong", "Basic Og=="):
                status, body = asked(port, path.format(topic="users", key="key-1"), authorization)
                assert (status, b"value-" in body) == (401, False), path


def test_an_address_for_others_needs_a_token_and_a_bucket_must_exist(s3: LocalS3Process) -> None:
    command = [f"{Path(sys.executable).parent}/keyfold", "serve"]
    environment = {**os.environ, **s3.environment}
    for arguments, words in (
        ([f"s3://{BUCKET}/topics", "--listen", "http://0.0.0.0:0"], "--token-file"),
        (["s3://nosuch/topics", "--listen", "http://127.0.0.1:0"], "nosuch"),
        ([f"s3://{BUCKET}/topics", "--listen", "https://127.0.0.1:0"], "https is not supported"),
    ):
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_machines_get_json(s3: LocalS3Process) -> None:
    with server(s3, "--json") as (url, _), urlopen(f"{url}/health") as answer:
        assert answer.status == 200
