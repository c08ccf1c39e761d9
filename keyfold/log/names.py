"""Names of objects in the bucket, and their parsers.

    <topics.dir>/<topic>/partition=<p>/<base:020>-<epoch:08>-<role><attempt>.avro
    <topics.dir>/<topic>/partition=<p>/_index/<base:020>-<epoch:08>-<role><attempt>.parquet
    <topics.dir>/<topic>/partition=<p>/_manifest.avro
    <topics.dir>/<topic>/partition=<p>/_manifest.damaged-<sha256:16>.avro
    <topics.dir>/<topic>/partition=<p>/_first_copy.json
    <topics.dir>/_schemas/<id>.avsc
    <topics.dir>/_keys/<topic>/partition=<p>/<version:020>-<attempt:016>.keys       see `keyfold.read.stored_directory`

A name always stands for the same bytes: the attempt is 64 random bits, so no writer reuses a name. A name has role and
epoch because garbage collection judges an unlisted object by them (a sink's upload must not look old to a compactor's
epoch). Spark skips names that begin with `_` or `.`, so such topic names are escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from keyfold.errors import Corrupt

MANIFEST_NAME: Final = "_manifest.avro"
FIRST_COPY_NAME: Final = "_first_copy.json"
"""Marker in a replica's partition, from before its first object until after its first commit (`first_copy`)."""

INDEX_FOLDER: Final = "_index/"
SCHEMAS_FOLDER: Final = "_schemas/"
KEY_DIRECTORIES_FOLDER: Final = "_keys/"
SEGMENT_SUFFIX: Final = ".avro"
INDEX_SUFFIX: Final = ".parquet"

# Numbers of about 64 bits at most, without extra zeros, in ASCII digits: `\d` would also match other scripts.
_OBJECT_NAME: Final = re.compile(
    r"(?P<index>_index/)?(?P<base>[0-9]{20})-(?P<epoch>[0-9]{8}|[1-9][0-9]{8,18})-(?P<role>[sc])(?P<attempt>[0-9a-f]{16})\.(?P<suffix>avro|parquet)"
)
_MANIFEST_COPY: Final = re.compile(r"_manifest\.damaged-[0-9a-f]{16}\.avro")
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION_FOLDER: Final = re.compile(r"partition=(0|[1-9][0-9]{0,9})")


class Role(Enum):
    """A role of writers, with its own epoch and its letter in the names of its objects."""

    SINK = "s"
    COMPACTOR = "c"


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A segment's or an index's name inside its partition."""

    base_offset: int
    epoch: int
    role: Role
    attempt: str
    is_index: bool = False

    def __str__(self) -> str:
        folder, suffix = (INDEX_FOLDER, INDEX_SUFFIX) if self.is_index else ("", SEGMENT_SUFFIX)
        return f"{folder}{self.base_offset:020d}-{self.epoch:08d}-{self.role.value}{self.attempt}{suffix}"

    @property
    def index(self) -> ObjectName:
        """The name of this segment's index."""
        return ObjectName(self.base_offset, self.epoch, self.role, self.attempt, is_index=True)


def new_name(base_offset: int, epoch: int, role: Role, random: Random, *, is_index: bool = False) -> ObjectName:
    """Return an unused name, with a fresh attempt of 64 random bits."""
    return ObjectName(base_offset, epoch, role, f"{random.getrandbits(64):016x}", is_index)


def parse_name(name: str) -> ObjectName | None:
    """Parse a name relative to its partition's folder; None if it is not the name of a segment or an index."""
    match = _OBJECT_NAME.fullmatch(name)
    if match is None or (match["index"] is not None) != (match["suffix"] == "parquet"):
        return None
    return ObjectName(
        int(match["base"]), int(match["epoch"]), Role(match["role"]), match["attempt"], match["index"] is not None
    )


def is_segment_name(name: str) -> bool:
    """Return whether a segment may have this name, relative to its partition's folder."""
    return _OBJECT_NAME.fullmatch(name) is not None and name.endswith(SEGMENT_SUFFIX) and not name.startswith("_")


def is_index_name(name: str) -> bool:
    """Return whether an index may have this name, relative to its partition's folder."""
    return _OBJECT_NAME.fullmatch(name) is not None and name.endswith(INDEX_SUFFIX) and name.startswith(INDEX_FOLDER)


def manifest_copy_name(sha256: str) -> str:
    """Return the name of the copy of a damaged manifest that a repair replaces; `sha256` of its bytes, in hex."""
    return f"_manifest.damaged-{sha256[:16]}.avro"


def is_manifest_copy(name: str) -> bool:
    """Return whether a name, relative to its partition's folder, is one of `manifest_copy_name`."""
    return _MANIFEST_COPY.fullmatch(name) is not None


def is_topic_name(topic: str) -> bool:
    """Return whether Kafka accepts this name (Topic.validate)."""
    return _TOPIC_NAME.fullmatch(topic) is not None and topic not in {".", ".."}


def topic_folder(topic: str) -> str:
    """Return the topic's folder name: its name with a leading `_` or `.` escaped (topic names have no `%`)."""
    return f"%{ord(topic[0]):02X}{topic[1:]}" if topic[:1] in {"_", "."} else topic


def topic_of_folder(folder: str) -> str | None:
    """Return the topic of a folder name, or None if it is not the folder of a topic."""
    topic = {"%5F": "_", "%2E": "."}.get(folder[:3], folder[:3]) + folder[3:]
    return topic if is_topic_name(topic) and topic_folder(topic) == folder else None


def partition_of_folder(folder: str) -> int | None:
    """Return the partition of a folder name `partition=<p>`, or None."""
    match = _PARTITION_FOLDER.fullmatch(folder)
    return None if match is None else int(match[1])


def schema_key(topics_dir: str, schema: int | str) -> str:
    """Return the key of the writer schema with this id or GUID."""
    return f"{topics_dir}/{SCHEMAS_FOLDER}{schema}.avsc" if topics_dir else f"{SCHEMAS_FOLDER}{schema}.avsc"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one partition's log. `topics_dir` may be empty or have slashes, but does not end in one."""

    topics_dir: str
    topic: str
    partition: int

    @property
    def folder(self) -> str:
        """Key prefix of the partition's objects, with its final slash."""
        return self._below("")

    @property
    def key_directories(self) -> str:
        """Key prefix of the partition's directories of keys, with its final slash."""
        return self._below(KEY_DIRECTORIES_FOLDER)

    def _below(self, folder: str) -> str:
        head = f"{self.topics_dir}/" if self.topics_dir else ""
        return f"{head}{folder}{topic_folder(self.topic)}/partition={self.partition}/"

    @property
    def manifest_key(self) -> str:
        """Key of the manifest."""
        return self.folder + MANIFEST_NAME

    def key(self, name: str) -> str:
        """Return the key of an object that a manifest lists."""
        return self.folder + name

    def own_key(self, name: str) -> str:
        """Return the key of a segment or index of this partition, for callers that delete or write it.

        Raises `Corrupt` for any other name. Readers already refuse manifests with such names; this is a second check
        directly before an object changes.
        """
        if parse_name(name) is None:
            raise Corrupt(
                self.topic,
                self.partition,
                f"{name!r} is not the name of a segment or an index",
                hint=f"nothing was changed; `{self.manifest_key}` may have been tampered with",
            )
        return self.folder + name

    def command(self, name: str) -> str:
        """Return the call of `keyfold log NAME` for this partition, for hints. The user adds the bucket's URL."""
        return f"keyfold log {name} <url> {self.topic} --partition {self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
