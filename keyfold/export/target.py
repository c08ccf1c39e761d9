"""Where an export goes: a folder, or a prefix of a bucket.

Nothing of an export is to be seen under its final name before all of it is there:

    1. claim      `_exporting.json` says that an export is at work. Who finds one, or any other file, is refused;
                  with `overwrite` what an earlier export wrote is replaced, and what none wrote is refused still.
    2. stage      files are written out of sight: in a hidden folder, or as multipart uploads that are not completed.
    3. publish    the claim is looked at again; what is replaced goes; files get their names; `_export.json` is last.

So a folder with `_export.json` and without `_exporting.json` is one whole export. A process that is killed leaves the
claim; before it publishes it leaves nothing else that can be seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.buffers import Bytes

SUMMARY: Final = "_export.json"
CLAIM: Final = "_exporting.json"
STAGING: Final = ".export-"

_PART: Final = re.compile(r"part-\d{5,}-\d{20}-[0-9a-f]{8}\.parquet")


class StagedFile(Protocol):
    """A file that is being written, or is written, and cannot be seen. `pyarrow` writes into it."""

    @property
    def name(self) -> str:
        """Its final name."""

    @property
    def size_bytes(self) -> int:
        """Bytes written."""

    @property
    def closed(self) -> bool:
        """Whether all bytes are written."""

    def write(self, data: Bytes) -> int:
        """Take the next bytes; says how many they were."""

    def flush(self) -> None:
        """Nothing: `close` does it."""

    def close(self) -> None:
        """All bytes are written, and safe."""

    def publish(self) -> None:
        """Give it its name."""

    def discard(self) -> None:
        """Forget it, as far as that can be done."""


class ExportTarget(Protocol):
    """A folder of files, claimed by one export at a time."""

    @property
    def url(self) -> str:
        """For messages."""

    def claim(self, text: str, *, overwrite: bool) -> None:
        """Take the folder, or raise `ConfigError` where it cannot be had."""

    def stage(self, name: str) -> StagedFile:
        """Begin a file. Several may be written at once."""

    def publish(self, files: Sequence[StagedFile], summary: str) -> None:
        """Make the export visible. Raises `KeyfoldError` where another has taken the folder meanwhile."""

    def abandon(self) -> None:
        """Let the folder go; nothing was published."""


def part_name(partition: int, first_offset: int, run: str) -> str:
    """A file's name. `run` is different in every export."""
    return f"part-{partition:05d}-{first_offset:020d}-{run}.parquet"


def check_free(url: str, names: Iterable[str], *, overwrite: bool) -> None:
    """Raise `ConfigError` where a folder with these files cannot be exported into."""
    names = sorted(names)
    foreign = [name for name in names if not is_ours(name)]
    if foreign:
        raise ConfigError(
            "--to",
            f"`{url}` is not empty: it contains `{foreign[0]}`{_more(foreign)}, not written by an export",
            hint="export into an empty folder or a new one",
        )
    if overwrite or not names:
        return
    if CLAIM in names:
        raise ConfigError(
            "--to",
            f"`{url}` is in use: another export is writing there, or was killed (`{CLAIM}`)",
            hint="wait for that export; only if it was killed, replace all files there with --overwrite",
        )
    raise ConfigError(
        "--to", f"`{url}` is not empty: it contains an earlier export", hint="replace it with --overwrite"
    )


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def is_ours(name: str) -> bool:
    """Whether a file, by its name below the target, is one that an export writes."""
    return name in {SUMMARY, CLAIM} or name.startswith(STAGING) or _PART.fullmatch(name) is not None


def require_claim(url: str, found: bytes | None, mine: str) -> None:
    """Raise `KeyfoldError` where the claim that is there is not ours."""
    if found != mine.encode():
        raise KeyfoldError(
            f"another export took over `{url}`; this export published no files",
            hint="run one export at a time into a folder",
        )


def partly(url: str, error: Exception) -> KeyfoldError:
    """The error when publishing has failed on the way."""
    return KeyfoldError(f"`{url}` contains only part of the export: {error}", hint="replace it with --overwrite")


def claim_text(values: Mapping[str, object]) -> str:
    """What a claim says."""
    return json.dumps(values, indent=2) + "\n"
