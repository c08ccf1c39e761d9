"""`/connectors/{name}/offsets` (KIP-875): where logs end, and moving an end forward.

In Connect these are a consumer group's offsets and may go anywhere, at the price of records lost or stored twice. Here
an offset is where a partition's log ends. It moves forward alone, over a gap that the log records; never back, for a
log holds each offset once.
"""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi import APIRouter

from keyfold_sink.rest import errors, shapes, views
from keyfold_sink.rest.backend import JSON_BODY, Behind, Connector
from keyfold_sink.service import NotStopped
from keyfold_sink.status import State
from keyfold_sink.writing.batch import TopicPartitionKey

router = APIRouter(prefix="/connectors", tags=["offsets"])

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NEVER_BACK: Final = (
    "a log holds each offset once, so its end never goes back; to have the topic a second time, keep this log and run "
    "a sink with another `topics.dir`"
)


@router.get("/{connector}/offsets", operation_id="getOffsets")
def get_offsets(behind: Behind, _name: Connector) -> shapes.ConnectorOffsets:
    """Where each partition's log ends: every offset below is durable, this is the next to be written."""
    return views.offsets(behind.service.offsets())


@router.patch("/{connector}/offsets", dependencies=[JSON_BODY], operation_id="alterOffsets")
def alter_offsets(behind: Behind, name: Connector, patch: shapes.OffsetsPatch) -> shapes.Message:
    """Move ends of logs forward, each over a gap that the log records. All of them, or none.

    Only while the connector is STOPPED and its tasks have ended. Numbers may be strings, as in Connect. Going back, or
    null (which in Connect resets a partition), is refused.
    """
    if not patch.offsets:
        raise errors.bad_request("Partitions / offsets need to be provided for an alter offsets request")
    wanted = parse(patch.offsets)
    _require_stopped(behind, name)
    try:
        behind.service.alter_offsets(wanted)
    except NotStopped as error:
        raise _not_stopped(name, str(error)) from error
    return shapes.Message(message="The offsets for this connector have been altered successfully")


@router.delete("/{connector}/offsets", operation_id="resetOffsets")
def reset_offsets(behind: Behind, name: Connector) -> shapes.Message:
    """Reset all offsets: always refused (400), for it would store every record a second time."""
    _require_stopped(behind, name)
    raise errors.bad_request(f"The offsets of this connector cannot be reset: {_NEVER_BACK}")


def _require_stopped(behind: Behind, name: str) -> None:
    if behind.service.target() is not State.STOPPED:
        raise _not_stopped(name, f"it is {behind.service.target()}")


def _not_stopped(name: str, why: str) -> errors.Refused:
    return errors.bad_request(
        "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
        f"specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint ({why})"
    )


def parse(entries: list[dict[str, Any]]) -> dict[TopicPartitionKey, int]:
    """Offsets by partition. Raises `Refused` in Connect's words."""
    found: dict[TopicPartitionKey, int] = {}
    for entry in entries:
        key = _partition(entry.get("partition"))
        offset = _offset(entry.get("offset"), key)
        if found.setdefault(key, offset) != offset:
            raise errors.bad_request(f"The partition {key[0]}-{key[1]} is given twice, with different offsets")
    return found


def _partition(partition: Any) -> TopicPartitionKey:
    if partition is None:
        raise errors.bad_request("The partition for a sink connector offset cannot be null or missing")
    if not isinstance(partition, dict) or "kafka_topic" not in partition or "kafka_partition" not in partition:
        raise errors.bad_request(
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'"
        )
    topic, number = partition["kafka_topic"], _integer(partition["kafka_partition"], _INT_MAX)
    if not isinstance(topic, str):
        raise errors.bad_request("The topic for a sink connector offset must be a string")
    if number is None:
        raise errors.bad_request(
            "Failed to parse the following Kafka partition value in the provided offsets: "
            f"'{partition['kafka_partition']}'. Partition values for sink connectors need to be integers."
        )
    return topic, number


def _offset(offset: Any, key: TopicPartitionKey) -> int:
    if offset is None:
        raise errors.bad_request(f"The offset of {key[0]}-{key[1]} cannot be reset: {_NEVER_BACK}")
    if not isinstance(offset, dict) or "kafka_offset" not in offset:
        raise errors.bad_request(
            "The offset for a sink connector should either be null or contain the key 'kafka_offset'"
        )
    number = _integer(offset["kafka_offset"], _LONG_MAX)
    if number is None:
        raise errors.bad_request(
            "Failed to parse the following Kafka offset value in the provided offsets: "
            f"'{offset['kafka_offset']}'. Offset values for sink connectors need to be integers."
        )
    if number < 0:
        raise errors.bad_request(f"The offset of {key[0]}-{key[1]} is negative: {number}")
    return number


def _integer(value: Any, most: int) -> int | None:
    """As Java reads one from a number or a string; None for what it does not read."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, str):
        if _NUMBER.fullmatch(value) is None:
            return None
        value = int(value)
    return value if -most - 1 <= value <= most else None
