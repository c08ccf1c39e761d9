"""The offset document of a stream: what Spark keeps in its checkpoint, and hands back after a restart.

    {"format": 1, "topic": "users", "partitions": {
        "0": {"offset": 36, "begun": 0, "log_id": "...", "version": 7, "last_pass_epoch": 2,
              "seen_to": 40}}}

    offset            the next offset to read
    begun             where this stream began in this partition
    log_id, version, last_pass_epoch      the anchor (`keyfold.read.position`): what the log was when the stream began
    seen_to           no version that the stream has read ends behind it

The anchor never moves on, unless a promotion gave the log another id. A tombstone that a pass has marked after the
stream began deletes a value that the stream may have read, however long ago; so only tombstones that were marked before
it began may be purged ahead of it. The document therefore carries the first version's anchor for good, and a stream
that is started again knows as much as one that ran.

`begun` is there because Spark does not keep where a stream began: a first batch that is run again after a crash is
given a *new* answer of `initialOffset`, which for `latest` is a later one. Its end is from the checkpoint, and says
where the batch truly began (`true_start`). The same serves partitions that were not there when the stream began.
Before Spark 4.2 a stream is asked for its end before it is asked where to begin; then `begun` is `UNKNOWN` (-1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from keyfold.errors import ConfigError
from keyfold.read.position import Anchor

FORMAT: Final = 1
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a stream is in one partition. `begun` may be `UNKNOWN`; an offset that is means the log's start."""

    offset: int
    begun: int
    anchor: Anchor

    def at(self, offset: int, seen_to: int = UNKNOWN) -> PartitionPosition:
        """The same stream further on, in a version that ends at `seen_to`; where it does not move, the same value."""
        seen_to = max(seen_to, self.anchor.seen_to) if offset > self.offset else self.anchor.seen_to
        return PartitionPosition(offset, self.begun, replace(self.anchor, seen_to=seen_to))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is in all partitions that it knows."""

    topic: str
    positions: Mapping[int, PartitionPosition]

    def document(self) -> dict[str, Any]:
        """As Spark keeps it. The same positions always give the same text: Spark compares texts."""
        return {
            "format": FORMAT,
            "topic": self.topic,
            "partitions": {
                str(partition): {
                    "offset": position.offset,
                    "begun": position.begun,
                    "log_id": position.anchor.log_id,
                    "version": position.anchor.version,
                    "last_pass_epoch": position.anchor.last_pass_epoch,
                    "seen_to": position.anchor.seen_to,
                }
                for partition, position in sorted(self.positions.items())
            },
        }

    @staticmethod
    def read(document: Mapping[str, Any], topic: str) -> StreamOffset:
        """Read a document of a checkpoint. Raises `ConfigError` where it is another topic's, or none of ours."""
        if document.get("format") != FORMAT:
            raise _refused(f"its offsets have format {document.get('format')!r}; this version reads format {FORMAT}")
        if document.get("topic") != topic:
            raise _refused(f"belongs to a stream of topic {document.get('topic')!r}, not {topic!r}")
        try:
            positions = {int(number): _position(one) for number, one in document["partitions"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _refused(f"its offsets cannot be read: {error!r}") from error
        return StreamOffset(topic, positions)

    def true_start(self, partition: int, end: PartitionPosition) -> PartitionPosition:
        """Where the batch that begins here and ends at `end` begins in a partition."""
        start = self.positions.get(partition)
        if start is None or start.anchor.log_id != end.anchor.log_id:
            return end.at(end.begun)
        is_fresh = start.offset == start.begun and end.begun != UNKNOWN
        return end.at(end.begun) if is_fresh else start


def _position(one: Mapping[str, Any]) -> PartitionPosition:
    seen_to = int(one.get("seen_to", UNKNOWN))
    anchor = Anchor(str(one["log_id"]), int(one["version"]), int(one["last_pass_epoch"]), seen_to)
    return PartitionPosition(int(one["offset"]), int(one["begun"]), anchor)


def _refused(message: str) -> ConfigError:
    hint = "use a separate checkpoint location for each stream"
    return ConfigError("checkpointLocation", message, hint=hint)
