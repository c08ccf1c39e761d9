"""A rejected record and its dead letter; pure.

A dead letter is the same as Connect's (`DeadLetterQueueReporter`): the record's key, value, headers and timestamp. With
`errors.deadletterqueue.context.headers.enable` it has further headers that describe the error; their values are UTF-8
text. A header that the record already has is not added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.errors import LogError
from keyfold.log.record import Header
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.validate.convert.api import ConnectStage

PREFIX: Final = "__connect.errors."
EXCEPTION: Final = "org.apache.kafka.connect.errors.DataException"

# The client's overhead for a record, and for each header.
_OVERHEAD_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class InvalidRecord:
    """A record that must not be stored, with the reason.

    `timestamp` is None if the record has none. `headers` are empty if the client cannot read them.
    """

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    stage: ConnectStage
    converter: str
    cause: str
    message: str


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """The names of the sink and task for the headers. `context` says whether these headers are written."""

    connector: str
    task_id: int
    context: bool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for the dead letter topic. `offset` is that of the rejected record, for messages."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        content = len(self.key or b"") + len(self.value or b"")
        return _OVERHEAD_BYTES + content + sum(len(name) + len(value or b"") + 64 for name, value in self.headers)


class RejectedRecord(LogError):
    """A record failed its check, and `errors.tolerance` is `none`."""

    def __init__(self, key: TopicPartitionKey, failure: InvalidRecord) -> None:
        super().__init__(
            *key,
            f"the record at offset {failure.offset} failed its check in {failure.stage} "
            f"({failure.converter}): {failure.message}",
            hint="all records before it are in the log; correct the converter, or set errors.tolerance=all to skip "
            "such records (errors.deadletterqueue.topic.name keeps them), then restart the sink; to skip only this "
            f"record, stop the sink and alter the partition's offset to {failure.offset + 1}",
        )
        self.offset = failure.offset
        self.stage = failure.stage
        self.converter = failure.converter
        self.cause = failure.cause


def build_dead_letter(key: TopicPartitionKey, failure: InvalidRecord, origin: DeadLetterOrigin) -> DeadLetter:
    """Return the dead letter of a rejected record of this partition."""
    headers = list(failure.headers)
    if origin.context:
        taken = {name for name, _ in headers}
        headers += [(name, value) for name, value in _context(key, failure, origin) if name not in taken]
    return DeadLetter(failure.offset, failure.timestamp, failure.key, failure.value, headers)


def _context(key: TopicPartitionKey, failure: InvalidRecord, origin: DeadLetterOrigin) -> list[Header]:
    topic, partition = key
    texts = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(failure.offset),
        "connector.name": origin.connector,
        "task.id": str(origin.task_id),
        "stage": failure.stage.value,
        "class.name": failure.converter,
        "exception.class.name": EXCEPTION,
        "exception.message": failure.message,
        "exception.stacktrace": f"{EXCEPTION}: {failure.message}\n",
    }
    # A message may quote the record, which may not be valid text.
    return [(PREFIX + name, text.encode(errors="backslashreplace")) for name, text in texts.items()]
