"""The manifest as bytes: an Avro object container file with one record and a checksum of the whole file.

The header alone answers three questions, in this order:

    1. are the bytes intact (`keyfold.sha256`, over the file with that value zeroed)?
    2. may this version read them (`keyfold.min.reader`)?
    3. may this version write the next manifest (`keyfold.min.writer`)?  See `require_writable`

A newer format may add fields. They are decoded with the schema in the file, if `keyfold.log.manifest_schema` accepts
it, kept in `unknown`, and written back with a schema that has the fields of both versions. So an old writer never drops
fields that a new one needs.

Anybody who may write into the bucket can compute a checksum, so the record is not trusted either: it is decompressed
only up to `raw_bytes_max`, and names are checked while segments are read. Memory is a small multiple of that limit.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import fields as dataclass_fields
from functools import lru_cache, partial
from typing import Any, Final

import fastavro
import zstandard
from fastavro.schema import SchemaParseException

from keyfold.errors import Corrupt, FormatTooNew, ManifestTooLarge
from keyfold.log.avro import SYNC_BYTES, parse_block, read_meta
from keyfold.log.manifest import (
    Ancestor,
    Gap,
    Hold,
    Manifest,
    Pass,
    Replaced,
    ReplicaState,
    RoleState,
    SegmentEntry,
    faults,
)
from keyfold.log.manifest_schema import Document, ManifestSchema, for_writing, manifest_schema
from keyfold.log.names import Place, is_index_name, is_segment_name
from keyfold.runtime.zstd import zstd
from keyfold_schemas import load_schema

FORMAT: Final = 1
"""The format version that this code reads and writes."""

_MAGIC: Final = b"Obj\x01"
_CHECKSUM_KEY: Final = b"keyfold.sha256"
_CHECKSUM_AT: Final = re.compile(re.escape(_CHECKSUM_KEY) + rb"\x80\x01([0-9a-f]{64})")
_NO_CHECKSUM: Final = b"0" * 64
_LEVEL: Final = 3

# A segment's entry has about 240 bytes, of which 72 are random (two checksums, and the attempt in its names); two
# replaced names have 135 bytes, of which 8 are random. So keyfold's own manifests compress to a half, and to an eighth
# if they only have names. Lists of passes compress further; the fixed share allows for that.
_RAW_BYTES: Final = 16 * 1024 * 1024
_RAW_RATIO: Final = 32
_RAW_BYTES_ADDED: Final = 2 * 1024 * 1024
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a stored manifest: 500,000 segments. Every commit writes it once, so logs become slow long before."""

_SMALL_ARRAY_MAX: Final = 100_000
_VERSION: Final = re.compile(r"-?[0-9]{1,9}")
_HEADER_BYTES: Final = 4 * 1024 * 1024
_NAME_SHOWN: Final = 120
_FAULTS_SHOWN: Final = 5


def encode_manifest(manifest: Manifest, max_bytes: int = MANIFEST_BYTES_MAX) -> bytes:
    """Return the bytes of a manifest, after a check of its consistency. Raises `ManifestTooLarge`."""
    found = faults(manifest)
    if found:
        message = f"refusing to write an unsound manifest of {manifest.topic}-{manifest.partition}: {'; '.join(found)}"
        raise AssertionError(message)
    schema = _schema_for(manifest.writer_schema)
    body = io.BytesIO()
    try:
        written_by = for_writing(schema)
    except SchemaParseException as error:
        raise FormatTooNew(
            manifest.topic,
            manifest.partition,
            f"this version cannot write the newer schema of the manifest: {error}",
            hint="upgrade keyfold on this machine; it can still read the log",
        ) from error
    fastavro.schemaless_writer(body, written_by, _to_document(manifest))
    block = zstd.compress(body.getvalue(), level=_LEVEL)
    raw_bytes, limit = len(body.getvalue()), max_bytes - _HEADER_BYTES
    if len(block) > limit or raw_bytes > raw_bytes_max(len(block), is_own=not manifest.writer_schema):
        raise ManifestTooLarge(
            manifest.topic,
            manifest.partition,
            f"a manifest of {len(manifest.segments)} segments would have {len(block)} bytes ({raw_bytes} "
            f"uncompressed), more than the limit of {limit}; nothing was written",
            hint="let the compactor merge segments, and let the sink write larger ones (`flush.size`, `segment.ms`)",
        )
    return _sealed(
        {
            "avro.schema": json.dumps(schema, separators=(",", ":")).encode(),
            "avro.codec": b"zstandard",
            "keyfold.format": str(FORMAT).encode(),
            "keyfold.min.reader": str(manifest.min_reader).encode(),
            "keyfold.min.writer": str(manifest.min_writer).encode(),
            "keyfold.features": ",".join(manifest.features).encode(),
        },
        block,
    )


def _sealed(metadata: Mapping[str, bytes], block: bytes) -> bytes:
    """Return the file with this header, one record, and its own checksum."""
    metadata = {**metadata, _CHECKSUM_KEY.decode(): _NO_CHECKSUM}
    sync = hashlib.sha256(block).digest()[:SYNC_BYTES]
    out = io.BytesIO()
    out.write(_MAGIC)
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, metadata)
    out.write(sync)
    fastavro.schemaless_writer(out, "long", 1)
    fastavro.schemaless_writer(out, "bytes", block)
    out.write(sync)
    unsealed = out.getvalue()
    at = _CHECKSUM_AT.search(unsealed)
    assert at is not None
    seal = hashlib.sha256(unsealed).hexdigest().encode()
    return unsealed[: at.start(1)] + seal + unsealed[at.end(1) :]


def decode_manifest(data: bytes, place: Place) -> Manifest:
    """Read a manifest.

    Raises `Corrupt` if an encoder did not write the bytes, `FormatTooNew` if they require a newer reader.
    """
    at = _CHECKSUM_AT.search(data)
    if at is not None:
        unsealed = data[: at.start(1)] + _NO_CHECKSUM + data[at.end(1) :]
        if hashlib.sha256(unsealed).hexdigest().encode() != at[1]:
            raise _corrupt(place, "its checksum does not match its bytes")
    try:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not start with Avro's magic bytes")
        metadata, position = read_meta(data, len(_MAGIC))
        min_reader = _version(metadata, "keyfold.min.reader")
    except (ValueError, EOFError) as error:
        raise _corrupt(place, f"its header cannot be read ({error or 'it is cut off'})") from error
    if min_reader > FORMAT:
        raise FormatTooNew(
            place.topic,
            place.partition,
            f"`{place.manifest_key}` needs a reader of format {min_reader}; this version reads formats up to {FORMAT}",
            hint="upgrade keyfold on this machine",
        )
    if at is None or min_reader < 0:
        raise _corrupt(place, "it has no checksum, so keyfold did not write it")
    try:
        schema = manifest_schema(metadata.get("avro.schema", ""), FORMAT)
        manifest = _from_body(schema, _unpacked(data, position, metadata, schema), metadata)
    except Exception as error:  # fastavro does not document its exceptions for malformed records
        raise _corrupt(place, f"its record cannot be decoded ({type(error).__name__}: {error})") from error
    found = faults(manifest)
    if found:
        raise _corrupt(place, "; ".join(found[:_FAULTS_SHOWN]))
    if (manifest.topic, manifest.partition) != (place.topic, place.partition):
        raise _corrupt(place, f"it belongs to {manifest.topic[:_NAME_SHOWN]}-{manifest.partition}")
    return manifest


def raw_bytes_max(stored_bytes: int, *, is_own: bool = True) -> int:
    """Return the limit of a manifest's uncompressed record, which has `stored_bytes` compressed bytes.

    With added fields of a newer format the limit is lower, because the number of values per byte is unknown.
    """
    return (_RAW_BYTES if is_own else _RAW_BYTES_ADDED) + _RAW_RATIO * stored_bytes


def _version(metadata: Mapping[str, str], key: str) -> int:
    """Return a version in the header, -1 for none. Raises `ValueError`."""
    text = metadata.get(key, "-1")
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{key} in the header is {text[:_NAME_SHOWN]!r}, which is not a version number")
    return int(text)


def _unpacked(data: bytes, position: int, metadata: Mapping[str, str], schema: ManifestSchema) -> bytes:
    """Return the uncompressed record. Raises `ValueError` for more than the limit, before decompressing it."""
    sync = data[position : position + SYNC_BYTES]
    block = parse_block(memoryview(data)[position + SYNC_BYTES :], sync)
    if metadata.get("avro.codec") != "zstandard" or block.record_count != 1:
        raise ValueError(
            f"it has {block.record_count} records, compressed with {metadata.get('avro.codec', '')[:_NAME_SHOWN]!r}"
        )
    try:
        size_bytes = zstandard.frame_content_size(block.payload)
        if not 0 <= size_bytes <= raw_bytes_max(len(block.payload), is_own=schema.is_own):
            raise ValueError(f"{len(block.payload)} bytes declare an uncompressed size of {size_bytes}")
        return zstandard.ZstdDecompressor().decompress(block.payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def require_writable(manifest: Manifest) -> None:
    """Raise `FormatTooNew` if only a newer keyfold may write the next version."""
    if manifest.min_writer > FORMAT:
        raise FormatTooNew(
            manifest.topic,
            manifest.partition,
            f"the manifest needs a writer of format {manifest.min_writer}; this version writes format {FORMAT}",
            hint="upgrade keyfold on this machine; it can still read the log",
        )


def _corrupt(place: Place, what: str) -> Corrupt:
    return Corrupt(
        place.topic,
        place.partition,
        f"the manifest `{place.manifest_key}` is damaged: {what}",
        hint=f"restore an older version of the object, or run `{place.command('repair')} --replace-damaged`, which "
        "keeps a copy of it",
    )


def _to_document(manifest: Manifest) -> Document:
    document: Document = dict(manifest.unknown)
    for name in _FIELDS[Manifest] - {"writer_schema", "min_reader", "min_writer", "features"}:
        document[name] = _plain(getattr(manifest, name))
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if type(value) in _FIELDS:
        document: Document = dict(getattr(value, "unknown", {}))
        document.update({name: _plain(getattr(value, name)) for name in _FIELDS[type(value)]})
        return document
    return value


def _from_body(schema: ManifestSchema, body: bytes, metadata: Mapping[str, str]) -> Manifest:
    """Return the manifest in `body`. Raises the errors of `ManifestSchema.read`, and errors for wrong types."""
    lists: dict[str, list[Any]] = {name: [] for name in _ITEMS}
    settings: dict[str, str] = {}

    def taking(name: str) -> Callable[[list[Document]], None]:
        kind, found = _ITEMS[name], lists[name]

        def take(items: list[Document]) -> None:
            found.extend(map(kind, items))
            _limit(name, found)

        return take

    def take_settings(items: list[tuple[str, str]]) -> None:
        settings.update(items)
        _limit("settings", settings)

    document = schema.read(body, {**{name: taking(name) for name in _ITEMS}, "settings": take_settings})
    values = _known(Manifest, document)
    values.update({name: tuple(found) for name, found in lists.items()})
    values["sink"] = RoleState(**_known(RoleState, document["sink"]))
    values["compactor"] = RoleState(**_known(RoleState, document["compactor"]))
    replica = document.get("replica")
    values["replica"] = None if replica is None else _open(ReplicaState, replica)
    return Manifest(
        **values,
        settings=settings,
        min_reader=_version(metadata, "keyfold.min.reader"),
        min_writer=_version(metadata, "keyfold.min.writer"),
        features=tuple(f for f in metadata.get("keyfold.features", "").split(",") if f),
        unknown=_rest(Manifest, document),
        writer_schema=schema.text,
    )


def _limit(name: str, found: Sized) -> None:
    """Raise `ValueError` for more items than keyfold ever writes. Arrays with names are bounded by their size."""
    if name not in {"segments", "replaced"} and len(found) > _SMALL_ARRAY_MAX:
        raise ValueError(f"more than {_SMALL_ARRAY_MAX} {name}")


def _open(kind: Any, item: Document) -> Any:
    """Return a value that may have fields of a newer format."""
    return kind(**_known(kind, item), unknown=_rest(kind, item))


def _entry(item: Document) -> SegmentEntry:
    if not is_segment_name(item["name"]):
        raise ValueError(f"{item['name'][:_NAME_SHOWN]!r} is not the name of a segment")
    if not is_index_name(item["index_name"]):
        raise ValueError(f"{item['index_name'][:_NAME_SHOWN]!r} is not the name of an index")
    values = _known(SegmentEntry, item)
    values["cleaned_epochs"] = tuple(values.get("cleaned_epochs", ()))
    values["schema_ids"] = tuple(values.get("schema_ids", ()))
    return SegmentEntry(**values, unknown=_rest(SegmentEntry, item))


def _replaced(item: Document) -> Replaced:
    if not (is_segment_name(item["name"]) or is_index_name(item["name"])):
        raise ValueError(
            f"{item['name'][:_NAME_SHOWN]!r} among the replaced objects is not the name of a segment or an index"
        )
    return Replaced(**_known(Replaced, item))


def _known(kind: type, document: Document) -> Document:
    return {name: value for name, value in document.items() if name in _FIELDS[kind]}


def _rest(kind: type, document: Document) -> Document:
    """Return the unknown fields of a newer format."""
    return {name: value for name, value in document.items() if name not in _FIELDS[kind]}


_FIELDS: Final[dict[type, frozenset[str]]] = {
    kind: frozenset(f.name for f in dataclass_fields(kind)) - {"unknown"}
    for kind in (Manifest, SegmentEntry, RoleState, Pass, Gap, Hold, Replaced, ReplicaState, Ancestor)
}
_ITEMS: Final[Mapping[str, Callable[[Document], Any]]] = {
    "passes": lambda item: Pass(**_known(Pass, item)),
    "gaps": partial(_open, Gap),
    "holds": partial(_open, Hold),
    "lineage": partial(_open, Ancestor),
    "segments": _entry,
    "replaced": _replaced,
}
"""The manifest's arrays, and the functions that create values from their items."""


@lru_cache(maxsize=16)
def _schema_for(theirs: str) -> Document:
    """Return this version's schema with the additional fields of the file's schema."""
    ours: Document = load_schema("manifest", FORMAT)
    return ours if not theirs else _merged(ours, json.loads(theirs))


def _merged(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_merged(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    if not (isinstance(ours, dict) and isinstance(theirs, dict)) or ours["type"] != theirs.get("type"):
        return ours
    if ours["type"] == "array":
        return {**ours, "items": _merged(ours["items"], theirs["items"])}
    if ours["type"] != "record":
        return ours
    by_name = {f["name"]: f for f in theirs["fields"]}
    fields = [
        {**f, "type": _merged(f["type"], by_name[f["name"]]["type"])} if f["name"] in by_name else f
        for f in ours["fields"]
    ]
    mine = {f["name"] for f in ours["fields"]}
    return {**ours, "fields": fields + [f for f in theirs["fields"] if f["name"] not in mine]}
