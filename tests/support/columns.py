"""Batches for the converters' tests: only the parts that a converter reads."""

from __future__ import annotations

from collections.abc import Sequence

from keyfold.log.record import Header, RecordColumns


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header] | None] | None = None,
    base_offset: int = 0,
) -> RecordColumns:
    count = len(values)
    return RecordColumns(
        offsets=range(base_offset, base_offset + count),
        timestamps=[0] * count,
        timestamp_types=[1] * count,
        keys=[None] * count if keys is None else keys,
        values=values,
        headers=[None] * count if headers is None else headers,
        leader_epochs=[0] * count,
    )
