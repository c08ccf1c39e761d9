"""What `.option(...)` may say, and what is said about the rest."""

from __future__ import annotations

import pytest

from keyfold.config.options import markdown_table
from keyfold.errors import ConfigError
from keyfold.spark.source.options import OffsetBounds, SourceOptions
from tests.support.root import ROOT

MUST = {"url": "s3://bucket/some/topics", "topic": "users"}


def read(**more: str) -> SourceOptions:
    return SourceOptions.read({**MUST, **more})


def test_option_names_in_lower_case_are_understood() -> None:
    options = read(startingoffsets="earliest", maxoffsetspertrigger="7", includeheaders="false")
    assert options.starting_offsets == OffsetBounds(-2, {})
    assert options.max_offsets_per_trigger == 7
    assert "headers" not in options.column_names
    assert options.topics_dir == "some/topics"
    assert options.location().bucket == "bucket"


def test_load_with_a_path_gives_the_url() -> None:
    assert SourceOptions.read({"path": "s3://b/t", "topic": "users"}).url == "s3://b/t"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"startingofsets": "latest"}, "unknown key `startingofsets`; did you mean `startingOffsets`"),
        ({"kafka.bootstrap.servers": "x"}, "`kafka.bootstrap.servers`"),
        ({"startingoffsets": "first"}, "`startingOffsets`: must be earliest, latest, or JSON"),
        ({"startingoffsets": '{"0": "12"}'}, "`startingOffsets`: '0': '12' is not a partition and an offset"),
        ({"startingoffsets": '{"0": -3}'}, "`startingOffsets`: -3 of partition 0"),
        ({"startingoffsets": "{}"}, "`startingOffsets`"),
        ({"partitions": "0-20000000"}, "the range 0-20000000 has more than"),
        ({"partitions": "1,x"}, "`partitions`: 'x' is neither a partition nor a range"),
        ({"partitions": "9-3"}, "`partitions`"),
        ({"columns": "offset,colour"}, "`columns`: unknown column `colour`"),
        ({"columns": "key,key"}, "`columns`: names a column twice"),
        ({"maxpartitionbytes": "0"}, "`maxPartitionBytes`: must be at least 1"),
        ({"startingoffsets": "earliest", "startingtimestamp": "1"}, "`startingTimestamp`: .*cannot be combined with"),
        ({"aws.access.key.id": "a"}, "missing required key `aws.secret.access.key`"),
        ({"url": "file:///tmp"}, "`url`: 'file:///tmp' is not of the form s3://"),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SourceOptions.read({**MUST, **given})


@pytest.mark.parametrize("missing", ["url", "topic"])
def test_missing_options_are_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"missing required key `{missing}`"):
        SourceOptions.read({key: value for key, value in MUST.items() if key != missing})


def test_offsets_are_written_as_for_kafkas_source() -> None:
    assert read(startingoffsets='{"0": 12, "3": -1}').starting_offsets == OffsetBounds(None, {0: 12, 3: -1})
    assert read(startingoffsets='{"users": {"0": -2}}').starting_offsets == OffsetBounds(None, {0: -2})
    assert read(endingoffsets="LATEST").ending_offsets == OffsetBounds(-1, {})


def test_partitions_may_be_ranges() -> None:
    assert read(partitions="8-10, 3,3").partitions == (3, 8, 9, 10)


@pytest.mark.parametrize("key", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_a_batch_has_no_triggers(key: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`: does not apply to a batch"):
        read(**{key: "5"}).require_batch()


@pytest.mark.parametrize("given", [{"endingoffsets": "latest"}, {"endingtimestamp": "5"}])
def test_a_stream_does_not_end(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"`ending.*does not apply to a stream"):
        read(**given).require_stream()


def test_a_batch_refuses_an_empty_range() -> None:
    with pytest.raises(ConfigError, match="`startingOffsets`"):
        read(startingoffsets="latest").require_batch()
    with pytest.raises(ConfigError, match="`endingOffsets`"):
        read(endingoffsets="earliest").require_batch()


def test_no_error_repeats_a_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{"aws.secret.access.key": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(read(**{"aws.access.key.id": "a", "aws.secret.access.key": "hunter2"}))


def test_the_page_lists_the_actual_options() -> None:
    page = (ROOT / "docs" / "reading-spark-stream.md").read_text(encoding="utf-8")
    assert page.partition("<!-- printed from the table of options -->\n\n")[2].strip() == (
        markdown_table(SourceOptions).strip()
    )


def test_a_schema_of_other_columns_or_types_is_refused() -> None:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    from keyfold.spark.source.columns import schema_for

    with pytest.raises(ConfigError, match="unknown column `price`"):
        schema_for(StructType([StructField("price", LongType())]))
    with pytest.raises(ConfigError, match="column `offset` is bigint, not int"):
        schema_for(StructType([StructField("offset", IntegerType())]))
