"""What the configurations of this room's processes have in common: how they are watched, and which topics are meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from keyfold.errors import ConfigError
from keyfold.options import Port, StoreOptions, option
from keyfold.topic_pattern import topic_pattern


class ProcessOptions(StoreOptions):
    """A process that works on one bucket, as operators watch it."""

    metrics_port: Port = option(
        "metrics.port", 0, doc="Serve metrics for Prometheus on this port while the process lives; 0: not."
    )
    metrics_host: str = option(
        "metrics.host",
        "127.0.0.1",
        doc="Address to serve metrics on; 0.0.0.0 for a scrape from elsewhere. There is no password.",
        importance="low",
        min_length=1,
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "log.level", "info", doc="What is logged on standard error.", importance="low"
    )


def topic_mistakes(topics: Sequence[str], regex: str) -> Iterator[ConfigError]:
    """What is wrong with a choice of topics: by name, or by a regular expression, or neither for all of them."""
    if topics and regex:
        yield ConfigError("topics.regex", "is given beside `topics`", hint="give one of them")
    try:
        topic_pattern(regex)
    except ConfigError as error:
        yield error
