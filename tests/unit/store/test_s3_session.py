"""What sessions of botocore are told: how to read times, and which members of answers to look for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore.utils import parse_timestamp

from keyfold.store.s3_session import open_session, parse_time

HALF_PAST = datetime(2026, 11, 29, 9, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T09:30:15.000Z", HALF_PAST),
        ("2026-11-29T09:30:15Z", HALF_PAST),
        ("2026-11-29T10:30:15+01:00", HALF_PAST),
        ("Sun, 29 Nov 2026 09:30:15 GMT", HALF_PAST),
        ("2026-11-29T09:30:15.123Z", HALF_PAST.replace(microsecond=123_000)),
        ("2026-11-29T09:30:15", None),
        ("1764408615", None),
        ("20261129", None),
        ("20261129T093015Z", None),
        ("29 November 2026 09:30:15 UTC", None),
    ],
)
def test_times_are_those_of_botocore(text: str, expected: datetime | None) -> None:
    assert parse_time(text) == parse_timestamp(text)
    assert expected in {None, parse_time(text)}


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-45T99:00:00Z", "Sun, 99 Nov 2026 09:30:15 GMT"])
def test_what_is_no_time_is_refused_as_by_botocore(text: str) -> None:
    with pytest.raises(ValueError) as ours:
        parse_time(text)
    with pytest.raises(ValueError) as theirs:
        parse_timestamp(text)
    assert str(ours.value) == str(theirs.value)


def test_answers_have_the_members_that_the_store_reads() -> None:
    session = open_session(
        profile=None, access_key_id="a", secret_access_key="b", session_token=None, region="eu-central-1"
    )
    service = session.create_client("s3").meta.service_model

    def members(operation: str) -> set[str]:
        shape = service.operation_model(operation).output_shape
        assert shape is not None
        return set(shape.members)

    assert members("GetObject") == {"Body", "ContentLength", "ContentRange", "ETag", "LastModified"}
    assert members("PutObject") == {"ETag"}
    assert "VersionId" in members("DeleteObject")
