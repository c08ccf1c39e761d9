"""The manifest as bytes: an Avro object container file with one record, and a checksum over all of it.

Three questions are answered in this order, each from the header alone:

    1. are these the bytes that were written (`keyfold.sha256`, over the file with that value zeroed)?
    2. may this version read them (`keyfold.min.reader`)?
    3. may it write the next version (`keyfold.min.writer`)?  asked by `require_writable`

A newer format may add fields. They are decoded by the schema in the file, kept in `unknown`, and written back by a
schema that has both sides' fields: an old writer never drops what a new one needs.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any, Final, cast

import fastavro
from backports import zstd

from keyfold.errors import Corrupt, FormatTooNew
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
from keyfold.log.names import Place
from keyfold_schemas import load_schema

FORMAT: Final = 1
"""The format version that this code reads and writes."""

_MAGIC: Final = b"Obj\x01"
_CHECKSUM_KEY: Final = b"keyfold.sha256"
_CHECKSUM_AT: Final = re.compile(re.escape(_CHECKSUM_KEY) + rb"\x80\x01([0-9a-f]{64})")
_NO_CHECKSUM: Final = b"0" * 64
_LEVEL: Final = 3

Document = dict[str, Any]


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest. Its own soundness is checked before anything is written."""
    found = faults(manifest)
    if found:
        message = f"refusing to write an unsound manifest of {manifest.topic}-{manifest.partition}: {'; '.join(found)}"
        raise AssertionError(message)
    schema = _schema_for(manifest.writer_schema)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), _to_document(manifest))
    block = zstd.compress(body.getvalue(), level=_LEVEL)
    sync = hashlib.sha256(block).digest()[:16]
    metadata = {
        "avro.schema": json.dumps(schema, separators=(",", ":")).encode(),
        "avro.codec": b"zstandard",
        "keyfold.format": str(FORMAT).encode(),
        "keyfold.min.reader": str(manifest.min_reader).encode(),
        "keyfold.min.writer": str(manifest.min_writer).encode(),
        "keyfold.features": ",".join(manifest.features).encode(),
        _CHECKSUM_KEY.decode(): _NO_CHECKSUM,
    }
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

    Raises `Corrupt` where the bytes were not written by an encoder, `FormatTooNew` where they ask for a newer reader.
    """
    at = _CHECKSUM_AT.search(data)
    if at is not None:
        unsealed = data[: at.start(1)] + _NO_CHECKSUM + data[at.end(1) :]
        if hashlib.sha256(unsealed).hexdigest().encode() != at[1]:
            raise _corrupt(place, "its checksum does not match its bytes")
    try:
        reader = fastavro.reader(io.BytesIO(data))
        metadata: Mapping[str, Any] = reader.metadata
        min_reader = int(metadata.get("keyfold.min.reader", "-1"))
    except Exception as error:
        raise _corrupt(place, f"its header cannot be read ({error})") from error
    if min_reader > FORMAT:
        raise FormatTooNew(
            place.topic,
            place.partition,
            f"`{place.manifest_key}` needs a reader of format {min_reader}, this one reads up to {FORMAT}",
            hint="upgrade keyfold here",
        )
    if at is None or min_reader < 0:
        raise _corrupt(place, "it carries no checksum, so keyfold did not write it")
    try:
        (document,) = reader
        manifest = _from_document(cast("Document", document), metadata)
    except Exception as error:
        raise _corrupt(place, f"its record cannot be decoded ({error})") from error
    found = faults(manifest)
    if found:
        raise _corrupt(place, "; ".join(found))
    if (manifest.topic, manifest.partition) != (place.topic, place.partition):
        raise _corrupt(place, f"it is the manifest of {manifest.topic}-{manifest.partition}")
    return manifest


def require_writable(manifest: Manifest) -> None:
    """Raise `FormatTooNew` where only a newer keyfold may write the next version."""
    if manifest.min_writer > FORMAT:
        raise FormatTooNew(
            manifest.topic,
            manifest.partition,
            f"the manifest needs a writer of format {manifest.min_writer}, this one writes format {FORMAT}",
            hint="upgrade keyfold here; reading still works",
        )


def _corrupt(place: Place, what: str) -> Corrupt:
    return Corrupt(
        place.topic,
        place.partition,
        f"the manifest `{place.manifest_key}` is damaged: {what}",
        hint=f"restore an older version of the object, or run `keyfold log repair <url> {place.topic} --partition "
        f"{place.partition} --replace-damaged`, which keeps a copy of it",
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


def _from_document(document: Document, metadata: Mapping[str, Any]) -> Manifest:
    features = metadata.get("keyfold.features", "")
    values = dict(document)
    values["sink"] = RoleState(**_known(RoleState, document["sink"]))
    values["compactor"] = RoleState(**_known(RoleState, document["compactor"]))
    for name, kind in (("passes", Pass), ("replaced", Replaced)):
        values[name] = tuple(kind(**_known(kind, item)) for item in document[name])
    for name, open_kind in _OPEN:
        values[name] = tuple(_open(open_kind, item) for item in document.get(name, ()))
    replica = document.get("replica")
    values["replica"] = None if replica is None else _open(ReplicaState, replica)
    values["segments"] = tuple(_entry(item) for item in document["segments"])
    return Manifest(
        **_known(Manifest, values),
        min_reader=int(metadata["keyfold.min.reader"]),
        min_writer=int(metadata["keyfold.min.writer"]),
        features=tuple(f for f in features.split(",") if f),
        unknown=_rest(Manifest, document),
        writer_schema=metadata["avro.schema"],
    )


def _open(kind: Any, item: Document) -> Any:
    """A value that may have fields of a newer format."""
    return kind(**_known(kind, item), unknown=_rest(kind, item))


def _entry(item: Document) -> SegmentEntry:
    values = _known(SegmentEntry, item)
    values["cleaned_epochs"] = tuple(values["cleaned_epochs"])
    values["schema_ids"] = tuple(values["schema_ids"])
    return SegmentEntry(**values, unknown=_rest(SegmentEntry, item))


def _known(kind: type, document: Document) -> Document:
    return {name: value for name, value in document.items() if name in _FIELDS[kind]}


def _rest(kind: type, document: Document) -> Document:
    """What a newer format has beside what is known."""
    return {name: value for name, value in document.items() if name not in _FIELDS[kind]}


_FIELDS: Final[dict[type, frozenset[str]]] = {
    kind: frozenset(f.name for f in dataclass_fields(kind)) - {"unknown"}
    for kind in (Manifest, SegmentEntry, RoleState, Pass, Gap, Hold, Replaced, ReplicaState, Ancestor)
}
_OPEN: Final[tuple[tuple[str, Any], ...]] = (("gaps", Gap), ("holds", Hold), ("lineage", Ancestor))


@cache
def _schema_for(theirs: str) -> Document:
    """Our schema, with the fields that only the file's schema has."""
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
