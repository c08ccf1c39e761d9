"""What `_export.json` says: which log, which version and offsets of each partition, which files, what did not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from keyfold.export.files import WrittenFile
from keyfold.export.request import ExportRequest
from keyfold.export.rows import FormatMismatches
from keyfold.export.source import ExportRange
from keyfold.runtime.json_types import JsonObject, JsonValue

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """What was exported of a partition."""

    pinned: ExportRange
    files: tuple[WrittenFile, ...]
    mismatches: FormatMismatches

    @property
    def rows(self) -> int:
        """Rows in all of its files."""
        return sum(file.rows for file in self.files)

    def as_json(self) -> JsonObject:
        """For `_export.json` and `--json`."""
        place, manifest = self.pinned.place, self.pinned.manifest
        return {
            "topic": place.topic,
            "partition": place.partition,
            "log_id": manifest.log_id,
            "version": manifest.version,
            "from_offset": self.pinned.start,
            "to_offset": self.pinned.end,
            "rows": self.rows,
            "skipped": self.mismatches.skipped,
            "nulled": self.mismatches.nulled,
            "misfits": self.mismatches.examples,
            "files": [
                {
                    "name": file.staged.name,
                    "rows": file.rows,
                    "size_bytes": file.staged.size_bytes,
                    "first_offset": file.first_offset,
                    "last_offset": file.last_offset,
                }
                for file in self.files
            ],
        }


def about(topic: str, run: str, request: ExportRequest) -> JsonObject:
    """What the claim, the summary and each footer say of the export as a whole."""
    return {
        "format": FORMAT,
        "topic": topic,
        "export": run,
        "what": "latest" if request.latest else "log",
        "key_format": request.key_format.value,
        "value_format": request.value_format.value,
        "on_error": request.on_error.value,
    }


def footer(whole: Mapping[str, JsonValue], pinned: ExportRange) -> JsonObject:
    """What the footer of a partition's files says, beside rows and offsets of the file."""
    return {
        **whole,
        "partition": pinned.place.partition,
        "log_id": pinned.manifest.log_id,
        "version": pinned.manifest.version,
    }


def summary_text(
    whole: Mapping[str, JsonValue], exported_at_ms: int, schema: pa.Schema, partitions: Sequence[ExportedPartition]
) -> str:
    """The text of `_export.json`."""
    columns = {each.name: str(each.type) for each in schema}
    listed = [{k: v for k, v in each.as_json().items() if k != "topic"} for each in partitions]
    rows = sum(each.rows for each in partitions)
    return (
        json.dumps(
            {**whole, "exported_at": exported_at_ms, "columns": columns, "rows": rows, "partitions": listed}, indent=2
        )
        + "\n"
    )
