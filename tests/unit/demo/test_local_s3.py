"""The local store is what the fault tests stand on: its own promises come first."""

from __future__ import annotations

import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from keyfold_demo.faults import DROP, PASS, Fault, FaultPlan
from keyfold_demo.local_s3 import LocalS3, LocalS3Process


@pytest.fixture(scope="module")
def server() -> Iterator[LocalS3]:
    with LocalS3() as running:
        yield running


@pytest.fixture
def bucket(server: LocalS3) -> Iterator[str]:
    yield server.create_bucket(f"b-{uuid.uuid4().hex[:12]}")
    server.set_faults()


def test_eight_threads_that_update_one_object_lose_nothing(server: LocalS3, bucket: str) -> None:
    client = server.client()
    client.put_object(Bucket=bucket, Key="counter", Body=b"0", IfNoneMatch="*")

    def add(times: int) -> None:
        own = server.client()
        done = 0
        while done < times:
            seen = own.get_object(Bucket=bucket, Key="counter")
            value = int(seen["Body"].read())
            try:
                own.put_object(Bucket=bucket, Key="counter", Body=str(value + 1).encode(), IfMatch=seen["ETag"])
                done += 1
            except ClientError as error:
                if error.response["Error"]["Code"] != "PreconditionFailed":
                    raise
        own.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=add, args=(10,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert client.get_object(Bucket=bucket, Key="counter")["Body"].read() == b"80"
    client.close()


@pytest.mark.parametrize(
    ("status", "code"), [(409, "ConditionalRequestConflict"), (503, "SlowDown"), (500, "InternalError")]
)
def test_an_error_on_request_leaves_the_object_unwritten(server: LocalS3, bucket: str, status: int, code: str) -> None:
    client = server.client()
    server.set_faults(Fault(rf"^PUT /{bucket}/a", status=status))
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=bucket, Key="a", Body=b"x")
    assert caught.value.response["Error"]["Code"] == code
    assert server.struck() == [1]
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    client.put_object(Bucket=bucket, Key="a", Body=b"x")
    client.close()


def test_a_lost_answer_leaves_the_object_written(server: LocalS3, bucket: str) -> None:
    client = server.client()
    server.set_faults(Fault(rf"^PUT /{bucket}/", status=DROP, applied=True))
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=bucket, Key="a", Body=b"x", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"x"
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a", Body=b"x", IfNoneMatch="*")
    client.close()


def test_a_late_request_lands_after_its_connection_broke(server: LocalS3, bucket: str) -> None:
    client = server.client()
    server.set_faults(Fault(rf"^PUT /{bucket}/", status=DROP, late_ms=300))
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=bucket, Key="a", Body=b"x", IfNoneMatch="*")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    deadline = time.monotonic() + 60
    while client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    client.close()


def test_a_client_that_dies_or_pauses_mid_request_writes_nothing_and_blocks_no_other(
    server: LocalS3, bucket: str
) -> None:
    client = server.client()
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(
            f"PUT /{bucket}/half HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode() + b"x" * 50
        )
        client.put_object(Bucket=bucket, Key="whole", Body=b"x")
    time.sleep(0.1)
    assert [row["Key"] for row in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["whole"]
    client.close()


def test_every_answer_carries_one_real_date(server: LocalS3, bucket: str) -> None:
    client = server.client()
    answer = client.put_object(Bucket=bucket, Key="a", Body=b"x")
    client.close()
    date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    assert abs(date.timestamp() - time.time()) < 5


def test_ranges_heads_and_large_bodies_come_back_whole(server: LocalS3, bucket: str) -> None:
    client = server.client()
    body = bytes(range(256)) * 4096 * 6
    client.put_object(Bucket=bucket, Key="a", Body=body)
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == body
    assert client.get_object(Bucket=bucket, Key="a", Range="bytes=300-309")["Body"].read() == body[300:310]
    assert client.head_object(Bucket=bucket, Key="a")["ContentLength"] == len(body)
    client.close()


def test_the_server_process_serves_other_processes_and_ends() -> None:
    with LocalS3Process() as server:
        server.create_bucket("there")
        client = server.client()
        client.put_object(Bucket="there", Key="a", Body=b"x", IfNoneMatch="*")
        server.set_faults(Fault("^PUT ", status=409))
        with pytest.raises(ClientError, match="ConditionalRequestConflict"):
            client.put_object(Bucket="there", Key="b", Body=b"x")
        assert server.struck() == [1]
    with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
        client.list_buckets()
    client.close()


def test_a_stopped_server_also_stops_answering_on_open_connections() -> None:
    with LocalS3() as server:
        client = server.client()
        client.list_buckets()
    with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
        client.list_buckets()
    client.close()


def test_a_slow_request_is_executed_and_counted(server: LocalS3, bucket: str) -> None:
    client = server.client()
    server.set_faults(Fault(rf"^PUT /{bucket}/", status=PASS, slow_ms=200, times=-1))
    begun = time.monotonic()
    client.put_object(Bucket=bucket, Key="a", Body=b"x")
    assert time.monotonic() - begun >= 0.2
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
    assert server.struck() == [1]
    client.close()


def test_a_fault_plan_is_repeatable_from_its_seed() -> None:
    fault = Fault("^PUT", status=503, times=-1, chance=0.5)
    runs = [[FaultPlan([fault], seed).pick("PUT /a") for _ in range(1)] for seed in range(20)]
    assert runs == [[FaultPlan([fault], seed).pick("PUT /a") for _ in range(1)] for seed in range(20)]
    plan, again = FaultPlan([fault], 7), FaultPlan([fault], 7)
    picks = [plan.pick("PUT /a") is not None for _ in range(50)]
    assert picks == [again.pick("PUT /a") is not None for _ in range(50)]
    assert 5 < sum(picks) < 45


def test_a_fault_plan_skips_strikes_and_runs_out() -> None:
    plan = FaultPlan([Fault("^PUT /b/m", status=409, skip=1, times=2)])
    requests = ["GET /b/m", "PUT /b/m", "PUT /b/x", "PUT /b/m", "PUT /b/m", "PUT /b/m"]
    assert [plan.pick(request) is not None for request in requests] == [False, False, False, True, True, False]


@pytest.mark.parametrize("bad", [{"status": 418}, {"applied": True, "late_ms": 5}])
def test_an_invalid_fault_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Fault("", **bad)  # type: ignore[arg-type]  # fields by name, of any type
