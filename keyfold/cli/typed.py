"""Printing of records with decoded keys and values: text, JSON or Avro."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from keyfold.formats.format import FORMAT_NAMES

if TYPE_CHECKING:
    from keyfold.formats.format import RecordPart
    from keyfold.log.record import Record
    from keyfold.store.api import ObjectStore

_FORMATS = click.Choice(FORMAT_NAMES)

key_format_option = click.option(
    "--key-format", type=_FORMATS, default="bytes", show_default=True, help="How to decode keys."
)
value_format_option = click.option(
    "--value-format", type=_FORMATS, default="bytes", show_default=True, help="How to decode values."
)
on_error_option = click.option(
    "--on-error",
    type=click.Choice(["fail", "null", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a key or value that cannot be decoded.",
)


class Printer:
    """Prints the records of one topic."""

    def __init__(
        self,
        store: ObjectStore,
        topics_dir: str,
        topic: str,
        formats: Mapping[str, str],
        *,
        hint: str = "use --{part}-format bytes to print it undecoded",
    ) -> None:
        """Take `formats` from the options: `key_format` and `value_format`. `hint` is that of a failed decoding."""
        from keyfold.formats.decoder import Decoder
        from keyfold.formats.format import RecordPart
        from keyfold.formats.schema_archive import SchemaArchive

        self._topic = topic
        self._hint = hint
        self._typed = [part for part in RecordPart if formats[f"{part.value}_format"] != "bytes"]
        self._decoder = Decoder(
            key_format=formats["key_format"],
            value_format=formats["value_format"],
            schemas=SchemaArchive(store, topics_dir),
        )

    def json(self, partition: int, record: Record) -> str:
        """Return a record as one JSON object. Raise `RecordFormatMismatch` if its key or value cannot be decoded."""
        from keyfold.cli import output

        row = output.record_json(self._topic, partition, record)
        for part in self._typed:
            row[part.value] = self._plain(partition, record, part)
        return output.dumps(row)

    def key_text(self, partition: int, record: Record) -> str | None:
        """Return a record's key as `line` has it, or None if it has none. Raise `RecordFormatMismatch`."""
        from keyfold.cli import output
        from keyfold.formats.format import RecordPart

        if record.key is None:
            return None
        if RecordPart.KEY not in self._typed:
            return output.text(record.key)
        value = self._plain(partition, record, RecordPart.KEY)
        return value if isinstance(value, str) else output.dumps(value)

    def line(self, partition: int, record: Record) -> str:
        """Return a record as one line of text, with decoded keys and values as JSON. Raise `RecordFormatMismatch`."""
        from dataclasses import replace

        from keyfold.cli import output

        found: dict[str, Any] = {}
        for part in self._typed:
            if getattr(record, part.value) is not None:
                value = self._plain(partition, record, part)
                found[part.value] = (value if isinstance(value, str) else output.dumps(value)).encode()
        return output.record_line(self._topic, partition, replace(record, **found))

    def _plain(self, partition: int, record: Record, part: RecordPart) -> Any:
        from keyfold.formats.errors import FormatMismatch, mismatch_at

        try:
            try:
                return plain(self._decoder.decode(part, getattr(record, part.value), record.headers))
            except RecursionError as error:
                raise FormatMismatch("is nested too deeply") from error
        except FormatMismatch as mismatch:
            hint = self._hint.format(part=part.value)
            raise mismatch_at(self._topic, partition, record.offset, part, mismatch, hint=hint) from mismatch


def plain(value: object) -> object:
    """Return a value as JSON has it: times in ISO 8601, decimals and UUIDs as text, bytes as in `output.json_bytes`."""
    from keyfold.cli import output

    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return output.json_bytes(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | UUID) else value
