"""One record batch written into a partition as bytes, for what no client lets through: a header name that is no text.

A produce request of version 7 and a batch of magic 2, as Kafka's protocol guide has them; acks=all, no compression.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

RawHeader = tuple[bytes, bytes | None]
RawRecord = tuple[bytes | None, bytes | None, Sequence[RawHeader]]

_PRODUCE, _VERSION = 0, 7


def raw_produce(bootstrap_servers: str, topic: str, partition: int, records: Sequence[RawRecord]) -> int:
    """Write records (key, value, headers) into a partition that this broker leads; returns the first one's offset."""
    host, port = bootstrap_servers.split(":")
    batch = _batch(records)
    body = struct.pack(">hii", -1, 30_000, 1) + _string(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    # Before it in the request's body: a null transactional id.
    request = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + _string("raw") + struct.pack(">h", -1) + body
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = _receive(connection, struct.unpack(">i", _receive(connection, 4))[0])
    # Correlation id, one topic with its name, one partition: its number, the error, the base offset.
    at = 4 + 4 + 2 + len(topic.encode()) + 4
    _, error, base_offset = struct.unpack_from(">ihq", answer, at)
    assert error == 0, f"Kafka answered with error {error}"
    return int(base_offset)


def _batch(records: Sequence[RawRecord]) -> bytes:
    now_ms = int(time.time() * 1000)
    rows = b"".join(_record(number, *record) for number, record in enumerate(records))
    sealed = struct.pack(">hiqqqhii", 0, len(records) - 1, now_ms, now_ms, -1, -1, -1, len(records)) + rows
    body = struct.pack(">iBI", -1, 2, _crc32c(sealed)) + sealed
    return struct.pack(">qi", 0, len(body)) + body


def _record(number: int, key: bytes | None, value: bytes | None, headers: Sequence[RawHeader]) -> bytes:
    body = b"\x00" + _varint(0) + _varint(number) + _bytes(key) + _bytes(value) + _varint(len(headers))
    body += b"".join(_bytes(name) + _bytes(content) for name, content in headers)
    return _varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _receive(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        assert part, "Kafka closed the connection"
        found += part
    return found
