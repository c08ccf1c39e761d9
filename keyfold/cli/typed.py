"""Records on the command line with their keys and values typed: text, JSON or Avro."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

if TYPE_CHECKING:
    from keyfold.log.record import Record
    from keyfold.store.api import ObjectStore
    from keyfold.typed.formats import Part

FORMATS = click.Choice(["bytes", "string", "json", "avro"])

key_format_option = click.option(
    "--key-format", type=FORMATS, default="bytes", show_default=True, help="What keys are taken for."
)
value_format_option = click.option(
    "--value-format", type=FORMATS, default="bytes", show_default=True, help="What values are taken for."
)


class Printer:
    """Prints the records of one topic."""

    def __init__(self, store: ObjectStore, topics_dir: str, topic: str, formats: Mapping[str, str]) -> None:
        """`formats` are those of the options: `key_format`, `value_format`."""
        from keyfold.typed.decoder import Decoder
        from keyfold.typed.formats import Part
        from keyfold.typed.kept import KeptSchemas

        self._topic = topic
        self._typed = [part for part in Part if formats[f"{part.value}_format"] != "bytes"]
        self._decoder = Decoder(
            key_format=formats["key_format"],
            value_format=formats["value_format"],
            schemas=KeptSchemas(store, topics_dir),
        )

    def json(self, partition: int, record: Record) -> str:
        """One JSON object. Raises `RecordMisfit`."""
        from keyfold.cli import show

        row = show.record_json(self._topic, partition, record)
        for part in self._typed:
            row[part.value] = self._plain(partition, record, part)
        return show.dumps(row)

    def line(self, partition: int, record: Record) -> str:
        """One line for people; typed keys and values are JSON in it. Raises `RecordMisfit`."""
        from dataclasses import replace

        from keyfold.cli import show

        found: dict[str, Any] = {}
        for part in self._typed:
            if getattr(record, part.value) is not None:
                value = self._plain(partition, record, part)
                found[part.value] = (value if isinstance(value, str) else show.dumps(value)).encode()
        return show.record_line(self._topic, partition, replace(record, **found))

    def _plain(self, partition: int, record: Record, part: Part) -> Any:
        from keyfold.typed.misfit import Misfit, misfit_at

        try:
            try:
                return plain(self._decoder.decode(part, getattr(record, part.value), record.headers))
            except RecursionError as error:
                raise Misfit("is nested too deeply") from error
        except Misfit as misfit:
            hint = f"--{part.value}-format bytes prints it as it is"
            raise misfit_at(self._topic, partition, record.offset, part, misfit, hint=hint) from misfit


def plain(value: Any) -> Any:
    """A value as JSON can say it: times in ISO 8601, decimals and UUIDs as text, bytes as in `show.json_bytes`."""
    from keyfold.cli import show

    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return show.json_bytes(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | UUID) else value
