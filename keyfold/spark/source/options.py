"""The options of the data source `keyfold`: one table, read once, by Kafka's names where Kafka's source has them.

Spark hands options over with their names in lower case; they are put back into their own spelling first, so that an
error names what the user wrote. A key that is not in the table is refused, because an option that silently does nothing
is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, SecretStr

from keyfold.config.options import Flag, Names, Options, Rewritten, option
from keyfold.errors import ConfigError
from keyfold.spark.source.columns import COLUMNS
from keyfold.store.api import StoreAccess, StoreLocation
from keyfold.store.location import location_of, parse_url

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's numbers for the two ends of a log, inside JSON."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MIB: Final = 1024 * 1024
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_RANGE_LENGTH_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Where to begin or to end: an offset, `EARLIEST` or `LATEST` for each partition, or for all of them."""

    every: int | None
    by_partition: Mapping[int, int]

    def of(self, partition: int) -> int | None:
        """The option's value for a partition; None if it has none."""
        return self.by_partition.get(partition, self.every)


def parse_offsets(text: object) -> object:
    """`earliest`, `latest`, `{"0": 12, "1": -2}`, or the same below the topic's name. Raises `ValueError`."""
    if not isinstance(text, str):
        return text
    word = text.strip().lower()
    if word in _WORDS:
        return OffsetBounds(_WORDS[word], {})
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError('must be earliest, latest, or JSON such as {"0": 12, "1": -2}') from None
    return OffsetBounds(None, dict(_numbers(found)))


def _numbers(found: object) -> Iterator[tuple[int, int]]:
    if isinstance(found, dict) and len(found) == 1 and isinstance(inner := next(iter(found.values())), dict):
        found = inner  # as Kafka's source has it: {"topic": {"0": 12}}
    if not isinstance(found, dict) or not found:
        raise ValueError('must have an offset for each partition, such as {"0": 12, "1": -2}')
    for partition, offset in found.items():
        if not str(partition).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
            raise ValueError(f"{partition!r}: {offset!r} is not a partition and an offset")
        if offset < EARLIEST:
            raise ValueError(f"{offset} of partition {partition} is neither an offset nor -1 (latest) or -2 (earliest)")
        yield int(partition), offset


def parse_partitions(text: object) -> object:
    """`0,3,8-11` as the numbers it means. Raises `ValueError`."""
    if not isinstance(text, str):
        return text
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is neither a partition nor a range such as 8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {part} ends before it begins")
        if last - first >= _RANGE_LENGTH_MAX:
            raise ValueError(f"the range {part} has more than {_RANGE_LENGTH_MAX:,} partitions")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


_Offsets = Annotated[OffsetBounds | None, BeforeValidator(parse_offsets)]
_Partitions = Annotated[tuple[int, ...], BeforeValidator(parse_partitions)]
_Positive = Annotated[int, Field(ge=1)]
_Time = Annotated[int, Field(ge=0)]
_where = partial(option, group="Where")
_range = partial(option, group="Range")
_pace = partial(option, group="Pace")
_store = partial(option, group="Store")


class SourceOptions(Options):
    """Everything that `.option(...)` may say to `format("keyfold")`."""

    url: str = _where("url", doc="`s3://bucket/topics`; `.load(url)` says the same.", importance="high")
    topic: str = _where("topic", doc="The topic.", importance="high", min_length=1)
    partitions: _Partitions = _where("partitions", (), doc="Partitions such as `0,3,8-11`. Default: all.", kind="LIST")
    columns: Names = _where("columns", (), doc="Columns to read. Default: all. Fewer columns are faster to read.")
    include_headers: Flag = _where("includeHeaders", True, doc="Whether to include the column `headers`.")

    starting_offsets: _Offsets = _range(
        "startingOffsets",
        None,
        doc='`earliest`, `latest` or `{"0": 12, "1": -2}`, where -2 is earliest and -1 latest. Default: earliest for a '
        "batch, latest for a stream, as in Spark's Kafka source. A stream uses it once; then its checkpoint applies.",
        importance="high",
        kind="STRING",
    )
    ending_offsets: _Offsets = _range(
        "endingOffsets",
        None,
        doc="Batch only: where to stop, exclusive, in the same form. Default: latest.",
        kind="STRING",
    )
    starting_timestamp: _Time | None = _range(
        "startingTimestamp",
        None,
        doc="Start at the first record with this timestamp (ms) or a later one, or at the end if there is none.",
    )
    ending_timestamp: _Time | None = _range(
        "endingTimestamp",
        None,
        doc="Batch only: stop before the first record with this timestamp (ms) or a later one.",
    )
    fail_on_data_loss: Flag = _range(
        "failOnDataLoss",
        True,
        doc="Whether to fail if unread records or tombstones were removed from the log. With false the query continues "
        "and logs which offsets it skipped.",
    )

    max_offsets_per_trigger: _Positive | None = _pace(
        "maxOffsetsPerTrigger", None, doc="Stream only: approximate maximum of records per batch, over all partitions."
    )
    max_bytes_per_trigger: _Positive | None = _pace(
        "maxBytesPerTrigger", None, doc="Stream only: approximate maximum of stored (compressed) bytes per batch."
    )
    max_partition_bytes: _Positive = _pace(
        "maxPartitionBytes", 32 * _MIB, doc="Approximate maximum of stored (compressed) bytes per task."
    )
    min_partitions: _Positive = _pace("minPartitions", 1, doc="Minimum number of tasks, if there are enough blocks.")
    poll_interval_ms: Annotated[int, Field(ge=0)] = _pace(
        "pollIntervalMs",
        5000,
        doc="Stream only: minimum time between two reads of the manifests. Spark asks for new data a hundred times a "
        "second, and each read costs one request per partition.",
    )

    region: str | None = _store("s3.region", None, doc="Region of the bucket. Default: AWS_REGION or the profile's.")
    store_url: str | None = _store(
        "store.url", None, doc="Endpoint of a store other than AWS. Default: AWS_ENDPOINT_URL on the driver."
    )
    path_style: Flag | None = _store(
        "s3.path.style.access.enabled",
        None,
        doc="Whether to use path-style requests. Default: only with an endpoint other than AWS.",
        importance="low",
    )
    access_key_id: str | None = _store(
        "aws.access.key.id", None, doc="Access key. Prefer the environment or the role of the driver and the executors."
    )
    secret_access_key: SecretStr | None = _store("aws.secret.access.key", None, doc="Secret key.")
    session_token: SecretStr | None = _store("aws.session.token", None, doc="Session token.")

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SourceOptions:
        """Check what Spark hands over. Raises `ConfigError`, which names the option."""
        options = cls.parse(dict(given))
        parse_url(options.url)
        return options

    @classmethod
    def rewrite(cls, values: Mapping[str, str]) -> Rewritten:
        """Names as the table spells them; `path`, which `.load(...)` sets, is the URL."""
        spelling = {info.alias.lower(): info.alias for info in cls.model_fields.values() if info.alias}
        spelling["path"] = "url"
        named = {spelling.get(key.lower(), key): value for key, value in values.items()}
        return Rewritten(named)

    def contradictions(self) -> Iterator[ConfigError]:
        """See `Options.contradictions`."""
        yield from super().contradictions()
        for end in ("starting", "ending"):
            if getattr(self, f"{end}_offsets") is not None and getattr(self, f"{end}_timestamp") is not None:
                yield ConfigError(f"{end}Timestamp", f"cannot be combined with `{end}Offsets`", hint="use one of them")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            missing = "aws.access.key.id" if self.access_key_id is None else "aws.secret.access.key"
            yield ConfigError(
                missing, f"missing required key `{missing}`", hint="set both access key and secret key, or none"
            )
        for name in self.columns:
            if name not in COLUMNS:
                yield ConfigError("columns", f"unknown column `{name}`; the columns are {', '.join(COLUMNS)}")
        if len(set(self.columns)) != len(self.columns):
            yield ConfigError("columns", "names a column twice")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns to read, in order."""
        names = self.columns or COLUMNS
        return names if self.include_headers else tuple(name for name in names if name != "headers")

    @property
    def topics_dir(self) -> str:
        """The directory inside the bucket."""
        return parse_url(self.url)[1]

    def location(self) -> StoreLocation:
        """Where the bucket is, as driver and tasks open it."""
        access = StoreAccess(
            region=self.region,
            endpoint_url=self.store_url,
            access_key_id=self.access_key_id,
            secret_access_key=_plain(self.secret_access_key),
            session_token=_plain(self.session_token),
            path_style=self.path_style,
        )
        return location_of(self.url, access)

    def require_batch(self) -> SourceOptions:
        """These options, where they make sense for a batch. Raises `ConfigError`."""
        self._refuse("a batch", max_offsets_per_trigger=None, max_bytes_per_trigger=None)
        if self.starting_offsets is not None and self.starting_offsets.every == LATEST:
            raise ConfigError("startingOffsets", "a batch that starts at the latest offset has no records")
        if self.ending_offsets is not None and self.ending_offsets.every == EARLIEST:
            raise ConfigError("endingOffsets", "a batch that stops at the earliest offset has no records")
        return self

    def require_stream(self) -> SourceOptions:
        """These options, where they make sense for a stream. Raises `ConfigError`."""
        self._refuse("a stream", ending_offsets=None, ending_timestamp=None)
        return self

    def _refuse(self, kind: str, **unset: object) -> None:
        for name, value in unset.items():
            if getattr(self, name) != value:
                key = type(self).model_fields[name].alias or name
                raise ConfigError(key, f"does not apply to {kind}", hint="remove it")


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
