"""What a table holds, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text, size_text
from keyfold.table.maintain import hidden_count
from keyfold.table.request import PREFIX
from keyfold.table.table import ShownVersion, TableVersion


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table at one moment. `rows` are the visible ones."""

    name: str
    topic: str
    snapshot_id: int | None
    snapshots: int
    rows: int
    hidden: int
    data_files: int
    data_bytes: int
    delete_files: int
    shown: Mapping[int, ShownVersion]

    def as_json(self) -> JsonObject:
        """For `--json`."""
        return {
            "table": self.name,
            "topic": self.topic,
            "snapshot_id": self.snapshot_id,
            "snapshots": self.snapshots,
            "rows": self.rows,
            "hidden": self.hidden,
            "data_files": self.data_files,
            "data_bytes": self.data_bytes,
            "delete_files": self.delete_files,
            "partitions": [
                {
                    "partition": number,
                    "log_id": each.anchor.log_id,
                    "version": each.anchor.version,
                    "next_offset": each.next_offset,
                }
                for number, each in sorted(self.shown.items())
            ],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.name}: the latest state of {self.topic}"
        yield f"  rows        {self.rows:,}, and {self.hidden:,} hidden"
        files = f"{count_text(self.data_files, 'data file')}, {size_text(self.data_bytes)}"
        yield f"  files       {files}; {count_text(self.delete_files, 'delete file')}"
        yield f"  snapshots   {self.snapshots}, current {self.snapshot_id}"
        for number, each in sorted(self.shown.items()):
            yield f"  partition {number}: version {each.anchor.version}, up to offset {each.next_offset:,}"


def status_of(name: str, version: TableVersion) -> TableStatus:
    """Return the status of a table. Raises `NotKeyfoldsTable` if keyfold did not make it."""
    loaded = version.loaded
    files = version.data_files
    hidden = sum(hidden_count(file) for file in files)
    return TableStatus(
        name=name,
        topic=loaded.metadata.properties.get(f"{PREFIX}topic", ""),
        snapshot_id=loaded.metadata.current_snapshot_id,
        snapshots=len(loaded.metadata.snapshots),
        rows=sum(file.file.record_count for file in files) - hidden,
        hidden=hidden,
        data_files=len(files),
        data_bytes=sum(file.file.file_size_in_bytes for file in files),
        delete_files=len({entry.data_file.file_path for file in files for entry in file.hidden_by}),
        shown=version.shown,
    )
