"""`/connectors/{name}/offsets` (KIP-875): read the logs' ends, and move them forward.

In Connect these are the offsets of a consumer group. They may move in any direction, which loses records or stores them
twice. In keyfold an offset is the end of a partition's log. It only moves forward, over a gap that the log records,
because a log holds each offset once.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import APIRouter

from keyfold.http_server import errors
from keyfold.http_server.json_body import JSON_BODY
from keyfold_sink.control import NotStopped
from keyfold_sink.rest import shapes, status_responses
from keyfold_sink.rest.backend import Behind, Connector
from keyfold_sink.status import RunState
from keyfold_sink.topic_partition import TopicPartitionKey

router = APIRouter(prefix="/connectors", tags=["offsets"])

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NEVER_BACK: Final = (
    "a log holds each offset once, so its end never moves back; to store the topic a second time, run a sink with "
    "another `topics.dir`"
)


@router.get("/{connector}/offsets", operation_id="getOffsets")
def get_offsets(behind: Behind, _name: Connector) -> shapes.ConnectorOffsets:
    """Return the end of each partition's log: the next offset to be written; all offsets below it are durable."""
    return status_responses.offsets(behind.service.offsets())


@router.patch("/{connector}/offsets", dependencies=[JSON_BODY], operation_id="alterOffsets")
def alter_offsets(behind: Behind, name: Connector, patch: shapes.OffsetsPatch) -> shapes.Message:
    """Move the ends of logs forward, each over a gap that the log records. Either all ends move or none.

    The connector must be STOPPED and its tasks must have ended. Numbers may be strings, as in Connect. An offset below
    the log's end is refused, as is null, which resets a partition in Connect.
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
    """Reset all offsets: always refused (400), because a reset would store every record a second time."""
    _require_stopped(behind, name)
    raise errors.bad_request(f"The offsets of this connector cannot be reset: {_NEVER_BACK}")


def _require_stopped(behind: Behind, name: str) -> None:
    if behind.service.target() is not RunState.STOPPED:
        raise _not_stopped(name, f"its state is {behind.service.target()}")


def _not_stopped(name: str, why: str) -> errors.RequestRefused:
    return errors.bad_request(
        "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
        f"specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint ({why})"
    )


def parse(entries: list[dict[str, object]]) -> dict[TopicPartitionKey, int]:
    """Return the offsets by partition. Raise `Refused` with Connect's messages."""
    found: dict[TopicPartitionKey, int] = {}
    for entry in entries:
        key = _partition(entry.get("partition"))
        offset = _offset(entry.get("offset"), key)
        if found.setdefault(key, offset) != offset:
            raise errors.bad_request(f"Partition {key[0]}-{key[1]} is listed twice with different offsets")
    return found


def _partition(partition: object) -> TopicPartitionKey:
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


def _offset(offset: object, key: TopicPartitionKey) -> int:
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


def _integer(value: object, most: int) -> int | None:
    """Return an integer from a number or a string as Java parses it, None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, str):
        if _NUMBER.fullmatch(value) is None:
            return None
        value = int(value)
    return value if -most - 1 <= value <= most else None
