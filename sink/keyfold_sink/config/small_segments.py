"""Settings that make tiny segments; pure. They are allowed, and nearly always a mistake.

Each segment is an object with an index and an entry of the manifest, and takes several requests to the store.
Confluent's quick start has `flush.size=3`: of 7,752 records it makes 2,584 segments. The limits here are far below the
defaults, so that a low `segment.ms` for fresh data draws no warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from keyfold.config.options import Note
from keyfold.runtime.text import count_text, duration_text, size_text
from keyfold_sink.config.options import SinkOptions

_RECORDS_MIN: Final = 1000
_AGE_MIN_MS: Final = 10_000
_SIZE_MIN_BYTES: Final = 1024 * 1024
_DAY_MS: Final = 86_400_000


def small_segment_warnings(options: SinkOptions) -> tuple[Note, ...]:
    """Return a warning for each setting that makes tiny segments: general ones, and those of topics that differ."""
    general = dict(_settings(options))
    found = list(_warnings(general.items()))
    for topic in options.topics_with_own_values:
        own = ((key, value) for key, value in _settings(options.for_topic(topic)) if value != general[key])
        found += [Note(f"topic.{topic}.{note.key}", note.text) for note in _warnings(own)]
    return tuple(found)


def _settings(options: SinkOptions) -> Iterator[tuple[str, int]]:
    yield "flush.size", options.flush_size
    yield "segment.ms", options.segment_ms
    yield "segment.bytes", options.segment_bytes


def _warnings(settings: Iterable[tuple[str, int]]) -> Iterator[Note]:
    for key, value in settings:
        match key:
            case "flush.size" if 0 < value < _RECORDS_MIN:
                yield Note(
                    key,
                    f"makes a segment of every {count_text(value, 'record')}: {-(-1_000_000 // value):,} objects for a "
                    f"million records. Leave it out, or set at least {_RECORDS_MIN:,}; segment.ms and segment.bytes "
                    "end segments anyway",
                )
            case "segment.ms" if value < _AGE_MIN_MS:
                yield Note(
                    key,
                    f"makes a segment every {duration_text(value / 1000)} while records arrive: up to "
                    f"{_DAY_MS // value:,} objects a day for each partition. Set at least {_AGE_MIN_MS:,}",
                )
            case "segment.bytes" if value < _SIZE_MIN_BYTES:
                yield Note(
                    key,
                    f"makes segments of {size_text(value)}: {1024**3 // value:,} objects for each GiB. Set at least "
                    f"{_SIZE_MIN_BYTES:,}; readers and the compactor ask the store once or more for each object",
                )
