"""The interface of record validation.

A converter never changes a byte. It returns the records of a batch that fail its check, with the reason, in the terms
of Connect's dead letters and messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from keyfold.log.record import RecordColumns


class ConnectStage(StrEnum):
    """The part of a record that failed (Connect's `Stage`)."""

    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that failed, by its index in the batch.

    `converter` is Connect's class name (org.apache.kafka.connect.json.JsonConverter). `cause` is short and the same for
    all records that fail in the same way (it labels a counter). `message` describes the error of this record.
    """

    index: int
    stage: ConnectStage
    converter: str
    cause: str
    message: str


class SchemasPending(Exception):
    """Schemas of this batch are being requested; validate the same batch again once `Checks.pending` is false."""


class Checks(Protocol):
    """The key, value and header converters of one task. Only the main thread uses it; no call blocks.

    A schema counts as known once it is stored beside the log (`<topics.dir>/_schemas/`), so a commit need not wait for
    schemas. Requests to the registry and the store run on other threads, which retry while there is no answer.
    """

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        """Return the records that fail, one entry each (for the first stage that fails), in order of `index`.

        Null keys and values always pass. Raise `SchemasPending`, or a `KeyfoldError` for errors that no record caused
        (the registry refuses the credentials); the next call repeats the request.
        """

    def pending(self) -> bool:
        """Whether a schema is being requested."""

    def close(self) -> None:
        """Stop requests, without waiting for outstanding answers."""
