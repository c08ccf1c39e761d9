"""The gates of a storm inject the scheduled faults, and the effects can be told apart from what the client saw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from keyfold_demo.faults import Fault, FaultPlan
from tests.support.moto import DROP, PASS, LocalS3Process, s3_client
from tests.support.storm.gates import FAULTS, StormGate, kind_of
from tests.support.storm.summary import MUST_HAPPEN
from tests.support.storm.world import wait_until


def _put(gate: StormGate, bucket: str) -> bool:
    """Whether the client got the answer that its object exists."""
    client = s3_client(gate.url)
    try:
        client.put_object(Bucket=bucket, Key="a b", Body=b"bytes")
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


@pytest.fixture
def gate(local_s3: LocalS3Process) -> Iterator[StormGate]:
    with StormGate(local_s3.url) as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "kind", "is_applied"),
    [
        (Fault("^PUT ", status=503), "refused", False),
        (Fault("^PUT ", status=DROP), "dropped", False),
        (Fault("^PUT ", status=DROP, applied=True), "applied, answer lost", True),
        (Fault("^PUT ", status=500, applied=True), "applied, answered by an error", True),
        (Fault("^PUT ", status=PASS, slow_ms=50), "delayed", True),
    ],
)
def test_each_kind_of_fault_can_be_injected(
    local_s3: LocalS3Process, bucket: str, gate: StormGate, fault: Fault, kind: str, is_applied: bool
) -> None:
    direct = local_s3.client()
    gate._plan = FaultPlan([fault])
    assert _put(gate, bucket) == (kind == "delayed")
    assert ("Contents" in direct.list_objects_v2(Bucket=bucket)) == is_applied
    assert gate.struck == {kind: 1}
    assert _put(gate, bucket)
    direct.close()


def test_a_late_request_lands_after_its_client_gave_up(local_s3: LocalS3Process, bucket: str, gate: StormGate) -> None:
    direct = local_s3.client()
    gate._plan = FaultPlan([Fault("^PUT ", status=DROP, late_ms=300)])
    assert not _put(gate, bucket)
    wait_until(lambda: gate.struck["late, and landed"] == 1, "the request lands")
    assert direct.get_object(Bucket=bucket, Key="a b")["Body"].read() == b"bytes"
    direct.close()


def test_a_bucket_that_a_drill_removed_refuses_everything(bucket: str, gate: StormGate) -> None:
    gate.is_away = True
    assert not _put(gate, bucket)
    gate.is_away = False
    assert _put(gate, bucket)


def test_the_random_faults_include_each_fault_of_the_summary() -> None:
    kinds = {kind_of(fault) for faults in FAULTS.values() for fault in faults}
    assert kinds == {kind for kind in MUST_HAPPEN["store"] if not kind.startswith("late, ")}
