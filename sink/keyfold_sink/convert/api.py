"""What a converter is asked.

A converter never changes a byte. It says which records of a batch fail its check, and why, in the words that Connect's
dead letters and messages use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from keyfold.log.record import RecordColumns


class Stage(StrEnum):
    """Where a record failed (Connect's `Stage`)."""

    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record of a batch, by its place in the batch, that must not go into the log.

    `converter` is the class name as Connect spells it (org.apache.kafka.connect.json.JsonConverter); `cause` is short
    and the same for all records that fail alike (it labels a counter); `message` names what is wrong with this one.
    """

    index: int
    stage: Stage
    converter: str
    cause: str
    message: str


class SchemasPending(Exception):
    """Schemas of this batch are being asked for; judge the same batch again when `Checks.pending` is false."""


class Checks(Protocol):
    """The key, value and header converters of one task. Used by the main thread, which must not wait."""

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        """The records that fail, one entry each (the first stage that fails), in order. Raises `SchemasPending`.

        Raises `KeyfoldError` for what no record is to blame for (the registry refuses the credentials).
        """

    def pending(self) -> bool:
        """Whether a schema is being asked for. The registry is asked on other threads, again and again while away."""

    def settle(self, topic: str) -> None:
        """Called on a lane before a commit: schemas that the topic's records name are kept beside the log when it
        returns (`<topics.dir>/_schemas/<id>.avsc`). Raises what is
        retriable for the lane to repeat.
        """
