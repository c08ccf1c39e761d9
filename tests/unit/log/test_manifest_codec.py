"""The manifest's bytes: fields round-trip, flipped bits are found, newer formats are respected and preserved."""

import io
import json
from dataclasses import fields, replace
from random import Random

import fastavro
import pytest

from keyfold.errors import Corrupt, FormatTooNew, ManifestTooLarge
from keyfold.log import manifest_codec
from keyfold.log.manifest import WHOLE_RANGE, Gap, Manifest, faults
from keyfold.log.manifest_codec import decode_manifest, encode_manifest, require_writable
from keyfold.log.names import Place
from keyfold_schemas import load_schema
from tests.support.hostile import manifest_by
from tests.support.manifests import empty_manifest, entry, full_manifest, sink_name

PLACE = Place("topics", "users", 0)


def test_every_manifest_field_round_trips() -> None:
    manifest = full_manifest()
    decoded = decode_manifest(encode_manifest(manifest), PLACE)
    assert replace(decoded, writer_schema="") == manifest
    assert faults(decoded) == []


def test_the_schema_has_every_field_of_the_manifest() -> None:
    """fastavro leaves out a field that its schema does not have, and says nothing."""
    in_header = {"min_reader", "min_writer", "features"}
    of_this_process = {"unknown", "writer_schema"}
    names = {field["name"] for field in load_schema("manifest", manifest_codec.FORMAT)["fields"]}
    assert {field.name for field in fields(Manifest)} - in_header - of_this_process == names


def test_any_avro_reader_reads_a_manifest() -> None:
    (document,) = fastavro.reader(io.BytesIO(encode_manifest(full_manifest())))
    assert isinstance(document, dict)
    assert document["next_offset"] == 30


def test_every_flipped_byte_is_found() -> None:
    data = encode_manifest(full_manifest())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << Random(at).randrange(8)
        with pytest.raises(Corrupt, match=r"topics/users/partition=0/_manifest\.avro"):
            decode_manifest(bytes(damaged), PLACE)


def test_every_truncation_is_found() -> None:
    data = encode_manifest(full_manifest())
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_manifest(data[:length], PLACE)


def test_the_manifest_of_another_partition_is_refused() -> None:
    with pytest.raises(Corrupt, match="it belongs to users-0"):
        decode_manifest(encode_manifest(empty_manifest()), Place("topics", "users", 1))


def test_a_newer_reader_format_is_refused_and_a_newer_writer_format_can_be_read() -> None:
    with pytest.raises(FormatTooNew, match="needs a reader of format 2"):
        decode_manifest(encode_manifest(empty_manifest(min_reader=2)), PLACE)
    readable = decode_manifest(encode_manifest(empty_manifest(min_writer=2)), PLACE)
    with pytest.raises(FormatTooNew, match="needs a writer of format 2"):
        require_writable(readable)


def test_fields_of_a_newer_format_are_kept_by_an_old_writer() -> None:
    schema = load_schema("manifest", 1)
    schema["fields"].append({"name": "colour", "type": "string", "default": "blue"})
    segments = next(f for f in schema["fields"] if f["name"] == "segments")
    segments["type"]["items"]["fields"].append({"name": "bloom", "type": "bytes", "default": ""})
    gaps = next(f for f in schema["fields"] if f["name"] == "gaps")
    gaps["type"]["items"]["fields"].append({"name": "places", "type": "bytes", "default": ""})
    newer = replace(
        full_manifest(),
        writer_schema=json.dumps(schema),
        unknown={"colour": "red"},
        gaps=tuple(replace(g, unknown={"places": b"\x01"}) for g in full_manifest().gaps),
        segments=tuple(replace(s, unknown={"bloom": b"\x07"}) for s in full_manifest().segments),
    )
    once = decode_manifest(encode_manifest(newer), PLACE)
    again = decode_manifest(encode_manifest(replace(once, version=42)), PLACE)
    assert again.unknown == {"colour": "red"}
    assert [s.unknown for s in again.segments] == [{"bloom": b"\x07"}, {"bloom": b"\x07"}]
    assert [g.unknown for g in again.gaps] == [{"places": b"\x01"}]
    assert again.version == 42
    last = again.segments[-1]
    added = replace(entry(sink_name(30, 9), 30, 40), unknown={})
    longer = decode_manifest(encode_manifest(replace(again, segments=(*again.segments, added), next_offset=40)), PLACE)
    assert [s.unknown for s in longer.segments[-2:]] == [last.unknown, {"bloom": b""}]


def test_a_manifest_without_gap_counts_is_read_as_fully_lost_ranges() -> None:
    schema = load_schema("manifest", 1)
    gaps = next(f for f in schema["fields"] if f["name"] == "gaps")
    gaps["type"]["items"]["fields"] = [f for f in gaps["type"]["items"]["fields"] if f["name"] != "record_count"]
    read = decode_manifest(manifest_by(schema, manifest_codec._to_document(full_manifest())), PLACE)
    assert read.gaps == (Gap(11, 13, "not at the source", WHOLE_RANGE),)
    written = decode_manifest(encode_manifest(read), PLACE)
    assert written.gaps == read.gaps


def test_ten_thousand_segments_take_tens_of_bytes_each() -> None:
    random = Random(1)
    segments = tuple(
        entry(sink_name(i * 1000, 1, random.getrandbits(64)), i * 1000, (i + 1) * 1000, checksum=random.randbytes(32))
        for i in range(10_000)
    )
    data = encode_manifest(empty_manifest(segments=segments, next_offset=10_000_000, last_epoch=1))
    assert len(data) < 10_000 * 100


def test_an_unreadably_large_manifest_is_refused_with_a_clear_error() -> None:
    listed = tuple(entry(sink_name(at, 1), at, at + 1) for at in range(2_000))
    manifest = empty_manifest(segments=listed, next_offset=2_000, last_epoch=1)
    stored = len(encode_manifest(manifest))
    with pytest.raises(ManifestTooLarge, match=r"a manifest of 2000 segments would have \d+ bytes") as refused:
        encode_manifest(manifest, manifest_codec._HEADER_BYTES + stored // 2)
    assert "flush.size" in str(refused.value.hint)


def test_an_unsound_manifest_is_never_written() -> None:
    broken = replace(full_manifest(), next_offset=31)
    with pytest.raises(AssertionError, match="the last range ends at 30"):
        encode_manifest(broken)
