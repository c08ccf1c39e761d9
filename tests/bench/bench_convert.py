"""What the checks of converters cost beside a bare loop over the records, by the size of values.

The loop touches every field of the Kafka client's messages, as a consumer that does nothing else would; fetching them
is not in it, so the ratios are on the high side (the whole, with a broker: bench_sink). Each check gets the same column
of values again and again, in batches of 10,000 or 16 MB, with its schema known. `fastavro` is what decoding the same
records with it would cost, and `loads` a plain `orjson.loads` of the whole documents.

Run: python -m tests.bench.bench_convert [--quick]
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import orjson
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import parse_schema, schemaless_reader

from keyfold.log.record import RecordColumns
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.api import Checks, SchemasPending
from keyfold_sink.validate.convert.converter_checks import checks_of
from keyfold_sink.validate.convert.registry import ConfluentRegistry
from keyfold_sink.write.batch import columns
from tests.support.avro_cases import framed

SIZES: Final = (20, 211, 1000, 100_000)
_BATCH_BYTES: Final = 16 * 1024 * 1024
_JSON_CLASS: Final = "org.apache.kafka.connect.json.JsonConverter"
_AVRO: Final = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
_CONNECT: Final = {
    "type": "struct",
    "optional": False,
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "at", "type": "int64", "optional": False, "name": "org.apache.kafka.connect.data.Timestamp"},
        {"field": "note", "type": "string", "optional": True},
        {"field": "lines", "type": "array", "optional": False, "items": {"type": "string", "optional": False}},
    ],
}


def rows(count: int, size: int) -> Iterator[dict[str, Any]]:
    """Rows whose lines make up `size` bytes, forty a line."""
    random = Random(size)
    for number in range(count):
        lines = [f"{random.getrandbits(160):040x}" for _ in range(size // 45)]
        yield {"id": number, "at": 1_700_000_000_000 + number, "note": None, "lines": lines}


def text(count: int, size: int, word: str) -> list[bytes]:
    """Texts of `size` bytes."""
    filler = (word * ((size - 9) // len(word.encode()))).encode()
    return [b"%08d " % number + filler for number in range(count)]


def documents(count: int, size: int) -> list[bytes]:
    """JSON of about `size` bytes."""
    return [orjson.dumps({"id": row["id"]} if size < 50 else row) for row in rows(count, size - 60)]


def envelopes(count: int, size: int) -> list[bytes]:
    """The same with their schema before them, as Connect writes it."""
    return [orjson.dumps({"schema": _CONNECT, "payload": row}) for row in rows(count, size - 60)]


def opened(name: str, settings: dict[str, str], client: SchemaRegistryClient) -> Checks:
    """The checks of one value converter."""
    options: Any = SimpleNamespace(
        topics_dir="logs",
        key_converter="bytes",
        key_converter_settings={},
        value_converter=name,
        value_converter_settings=settings,
        header_converter="bytes",
        header_converter_settings={},
        errors_retry_timeout_ms=-1,
        errors_retry_delay_max_ms=10_000,
    )
    checks = checks_of(
        options,
        store=MemoryStore(),
        clock=SystemClock(),
        random=Random(1),
        open_registry=lambda own: ConfluentRegistry(own, client),
    )
    assert checks is not None
    return checks


def judge(checks: Checks, batch: RecordColumns) -> None:
    """Once, waiting for what has to be asked for."""
    while True:
        try:
            assert not checks.judge("t", 0, batch)
        except SchemasPending:
            while checks.pending():
                time.sleep(0.001)
        else:
            return


def messages(values: Sequence[bytes]) -> list[Message]:
    """What the client would hand over."""
    return [
        Message(topic="t", partition=0, offset=n, key=b"key-%08d" % n, value=value, headers=[], timestamp=(1, n))
        for n, value in enumerate(values)
    ]


def loop(records: Sequence[Message]) -> None:
    """Touch every field, and nothing else."""
    for record in records:
        record.error()
        record.topic()
        record.partition()
        record.offset()
        record.timestamp()
        record.key()
        record.value()
        record.headers()


def with_fastavro(values: Sequence[bytes], schema: Any) -> None:
    """Decode as a consumer with fastavro does."""
    for value in values:
        stream = io.BytesIO(value)
        stream.seek(5)
        schemaless_reader(stream, schema, None)


def with_orjson(values: Sequence[bytes]) -> None:
    """Parse, and nothing else."""
    for value in values:
        orjson.loads(value)


def least_us(call: Callable[[], None], count: int, seconds: float) -> float:
    """CPU of the best run, in microseconds a record."""
    best, end_s = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end_s or best == float("inf"):
        begin_s = time.process_time()
        call()
        best = min(best, time.process_time() - begin_s)
    return best / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a moment for each figure")
    seconds = 0.1 if parser.parse_args().quick else 1.5
    client = SchemaRegistryClient.new_client({"url": "mock://bench"})
    number = client.register_schema("t-value", Schema(json.dumps(_AVRO), "AVRO"))
    parsed = parse_schema(_AVRO)
    registry = {"schema.registry.url": "mock://bench"}
    print("value bytes  converter          mean bytes   loop µs   check µs   check/loop   beside it")
    for size in SIZES:
        count = max(50, min(10_000, _BATCH_BYTES // size))
        kinds: list[tuple[str, str, dict[str, str], list[bytes]]] = [
            ("string, ASCII", "string", {}, text(count, size, "x")),
            ("string, UTF-8", "string", {}, text(count, size, "ä")),
            ("json", "json", {}, documents(count, size)),
            ("json, envelope", _JSON_CLASS, {}, envelopes(count, size)),
            ("avro", "avro", registry, [framed(number, _AVRO, row) for row in rows(count, size - 20)]),
        ]
        for title, name, settings, values in kinds:
            records = messages(values)
            batch = columns(records)
            checks = opened(name, settings, client)
            judge(checks, batch)
            bare_us = least_us(lambda own=records: loop(own), count, seconds)  # type: ignore[misc]  # mypy does not infer a lambda with a default
            check_us = least_us(lambda c=checks, b=batch: judge(c, b), count, seconds)  # type: ignore[misc]  # mypy does not infer a lambda with a default
            beside = ""
            if title == "avro":
                other_us = least_us(lambda v=values: with_fastavro(v, parsed), count, seconds)  # type: ignore[misc]  # mypy does not infer a lambda with a default
                beside = f"fastavro {other_us:.2f}"
            elif title.startswith("json"):
                other_us = least_us(lambda v=values: with_orjson(v), count, seconds)  # type: ignore[misc]  # mypy does not infer a lambda with a default
                beside = f"loads {other_us:.2f}"
            checks.close()
            mean = sum(map(len, values)) / count
            print(
                f"{size:>11,}  {title:<18}{mean:>11,.0f}{bare_us:>10.2f}{check_us:>11.2f}{check_us / bare_us:>13.2f}"
                f"   {beside}"
            )


if __name__ == "__main__":
    main()
