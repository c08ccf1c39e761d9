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
    """The key, value and header converters of one task. Used by the main thread, which must not wait.

    A schema counts as known when it is kept beside the log (`<topics.dir>/_schemas/`), so nothing is left to be done
    before a commit. Registry and store are asked on other threads, again and again while they are away.
    """

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        """The records that fail, one entry each (the first stage that fails), in order of `index`.

        Null keys and values always pass. Raises `SchemasPending`; raises `KeyfoldError` for what no record is to blame
        for (the registry refuses the credentials): another call asks anew.
        """

    def pending(self) -> bool:
        """Whether a schema is being asked for."""

    def close(self) -> None:
        """Stop asking, without waiting for answers that are outstanding."""
