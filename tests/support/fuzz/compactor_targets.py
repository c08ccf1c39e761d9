"""What the compactor concludes from a manifest, and the pattern of a registration, which it matches with topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from keyfold.config.topic_pattern import topic_pattern
from keyfold.errors import ConfigError, KeyfoldError
from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.log.partition_log import Pinned
from keyfold_compactor.decide.policy import PartitionReview, decide_cleaning, forecast
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.cost import cost
from keyfold_compactor.report.gain import gain
from keyfold_compactor.report.log_state import log_state
from keyfold_compactor.report.show import plan_document, plan_lines
from tests.support.fuzz.log_targets import PLACE, manifest_body, manifest_seeds
from tests.support.fuzz.mutate import any_bytes, other_text, text_line
from tests.support.fuzz.target import Target

_NOW_MS: Final = 1_800_000_000_000
_KEYS: Final = sorted(CompactOptions.followed_keys())
_OPTIONS: Final = tuple(
    CompactOptions.parse({"s3.bucket.name": "b", **more})
    for more in (
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete", "retention.ms": "1000", "min.compaction.lag.ms": "5"},
        {},
    )
)


def manifest_settings(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change a setting that was followed from Kafka."""
    try:
        manifest = decode_manifest(data, PLACE)
        texts = ("9" * 5000, "nan", "1e400", "compact", "delete,compact", "-1", "", "0.5")
        value = random.choice((other_text("1", random), random.choice(texts)))
        settings = {**manifest.settings, random.choice(_KEYS): value}
        return encode_manifest(replace(manifest, settings=settings))
    except (KeyfoldError, AssertionError, UnicodeEncodeError):
        return any_bytes(data, others, random)


def decode_and_judge(data: bytes) -> None:
    """A manifest that is accepted, and all that a plan says of it."""
    manifest = decode_manifest(data, PLACE)
    pinned = Pinned(manifest, "etag", _NOW_MS, _NOW_MS)
    for options in _OPTIONS:
        _judge(options, manifest, pinned)


def _judge(options: CompactOptions, manifest: Manifest, pinned: Pinned) -> None:
    settings = replace(options.settings_of(manifest.topic, manifest.settings), replicas=("far@1", "(unknown)"))
    for is_forced in (False, True):
        decide_cleaning(manifest, settings, _NOW_MS, force=is_forced)
        decision = forecast(manifest, settings, _NOW_MS, force=is_forced)
        log_state(PLACE, pinned, decision, settings)
        found = cost(PLACE, pinned, decision, settings, 1 << 34)
        looks, costs = [PartitionReview(PLACE, pinned, decision)], {} if found is None else {PLACE: found}
        gains = {PLACE: gain(PLACE, pinned, decision, settings)}
        list(plan_lines(looks, costs, 1e6, gains))
        plan_document(looks, costs, 1e6, gains)


def choose_topics(data: bytes) -> None:
    """A pattern, with names that make it backtrack."""
    topic_pattern(data.decode("utf-8", "replace")).choose(["users", "orders-1", "a" * 249, "a" * 248 + "!"])


COMPACTOR_TARGETS: Final = (
    Target("compactor-look", manifest_seeds, decode_and_judge,
           ("keyfold_compactor.decide.policy", "keyfold_compactor.report.log_state",
            "keyfold_compactor.decide.retention",
            "keyfold_compactor.decide.horizon", "keyfold_compactor.report.cost",
            "keyfold_compactor.report.gain"),
           (manifest_settings, manifest_settings, manifest_body)),
    Target("topic-pattern", lambda: [b"users", rb"(?:dev|prod)\.[a-z_]+", b"(a+)+b?!?"], choose_topics,
           ("keyfold.config.topic_pattern",), (text_line,), (ConfigError,)),
)  # fmt: skip
