"""For any records: what is written is what fastavro reads, and rewriting by bytes is filtering records."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfold.log.codec import CODECS
from keyfold.log.record import Record
from keyfold.log.record_encoder import encode_few, prepare
from tests.support.segments import Made, columns_of, make, read_with_fastavro, record_lists, rewrite

codecs = st.sampled_from(CODECS)
block_sizes = st.sampled_from([1, 50, 300, 2000, 65536])
relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def check_index(made: Made, records: list[Record]) -> None:
    """The index says of the records what the records say of themselves."""
    index = made.index
    assert index.ints("offset").tolist() == [r.offset for r in records]
    assert index.ints("timestamp").tolist() == [r.timestamp for r in records]
    assert index.rows["key"].to_pylist() == [r.key for r in records]
    assert index.is_tombstone.tolist() == [r.is_tombstone for r in records]
    assert made.finished.tombstone_count == sum(r.is_tombstone for r in records)
    assert made.finished.keyless_count == sum(r.key is None for r in records)
    times = [r.timestamp for r in records if r.timestamp != -1] or [-1]
    assert (made.finished.min_timestamp, made.finished.max_timestamp) == (min(times), max(times))


@pytest.mark.sharded
@relaxed
@given(record_lists(), codecs, block_sizes)
def test_the_round_trip_is_the_identity_and_fastavro_agrees(
    records: list[Record], codec: str, block_bytes: int
) -> None:
    made = make(records, codec=codec, block_bytes=block_bytes)
    assert made.records() == records
    assert read_with_fastavro(made.data) == records
    check_index(made, records)


@pytest.mark.sharded
@relaxed
@given(record_lists())
def test_both_encoders_give_the_same_bytes(records: list[Record]) -> None:
    few = encode_few(columns_of(records))
    many = list(prepare(columns_of(records), -1).slices())
    assert len(many) == 1
    assert b"".join(many[0].part(0, len(records))) == b"".join(few.part(0, len(records)))
    assert many[0].ends.tolist() == few.ends.tolist()
    assert many[0].keys.equals(few.keys)
    assert many[0].is_tombstone.tolist() == few.is_tombstone.tolist()


@pytest.mark.sharded
@relaxed
@given(record_lists(max_size=400), st.data(), block_sizes)
def test_any_split_into_appends_gives_the_same_records(records: list[Record], data: st.DataObject, size: int) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=12))
    made = make(records, codec="null", block_bytes=size, cuts=cuts)
    assert made.records() == records
    check_index(made, records)


@pytest.mark.sharded
@relaxed
@given(st.data(), codecs, codecs, block_sizes, block_sizes)
def test_rewriting_is_filtering(data: st.DataObject, old: str, new: str, old_size: int, new_size: int) -> None:
    records = data.draw(record_lists())
    cut = data.draw(st.integers(0, len(records)))
    parts = [part for part in (records[:cut], records[cut:]) if part]
    keep = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    if not any(keep):
        keep[0] = True
    keeps = [keep[:cut], keep[cut:]] if len(parts) == 2 else [keep]
    made = rewrite(
        [make(part, codec=old, block_bytes=old_size) for part in parts], keeps, codec=new, block_bytes=new_size
    )
    expected = [record for record, kept in zip(records, keep, strict=True) if kept]
    assert made.records() == expected
    check_index(made, expected)


@pytest.mark.sharded
@relaxed
@given(st.data(), codecs, block_sizes)
def test_rewriting_twice_is_rewriting_once_with_both_masks(data: st.DataObject, codec: str, size: int) -> None:
    records = data.draw(record_lists())
    masks = st.lists(st.booleans(), min_size=len(records), max_size=len(records))
    first, second = data.draw(masks), data.draw(masks)
    first[0] = second[0] = True
    once = rewrite([make(records, codec=codec, block_bytes=size)], [first], codec=codec, block_bytes=size)
    rest = [s for f, s in zip(first, second, strict=True) if f]
    twice = rewrite([once], [rest], codec=codec, block_bytes=size)
    expected = [r for r, f, s in zip(records, first, second, strict=True) if f and s]
    assert twice.records() == expected == read_with_fastavro(twice.data)
    check_index(twice, expected)
