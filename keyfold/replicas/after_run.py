"""One round of all replicas after a run of the compactor: what the compactor and the replicator agree on.

The compactor does not import the replicator. An installed package provides the rounds under the entry point group
`keyfold.after_compaction`, as an `OpenRounds`. The compactor loads it if `replicas.run` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from random import Random
from typing import Any, Final, Protocol, cast

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import ConfigError
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonValue
from keyfold.store.api import StoreLocation
from keyfold.store.location import OpenLocation

ENTRY_POINTS: Final = "keyfold.after_compaction"


@dataclass(frozen=True, slots=True)
class AfterRun:
    """What the rounds get from the compactor's configuration and command line.

    `location` and `topics_dir` are the source's. All reads and writes stay within `bytes_per_second`, if it is set.
    `allowed` says which credentials registrations may name. `topics` and `partitions` limit the rounds; empty: all.
    """

    location: StoreLocation
    topics_dir: str
    threads: int
    bytes_per_second: float | None
    allowed: AllowedCredentials
    topics: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AfterRunResult:
    """What followed a run, for one replica or one table: as JSON, and as lines of text.

    `is_news`: something was written, or failed.
    """

    name: str
    is_failure: bool
    is_news: bool
    document: Mapping[str, JsonValue]
    lines: tuple[str, ...]


AfterRunStep = Callable[[Callable[[], bool]], Sequence[AfterRunResult]]
"""Bring all replicas, or all tables, up to date until asked to stop; return the result for each of them."""


class MetricsRegistry(Protocol):
    """Where the rounds register the collector of their metrics, such as Prometheus' `CollectorRegistry`."""

    def register(self, collector: Any) -> None:
        """Serve the collector's metrics, too."""


class OpenRounds(Protocol):
    """Opens the source's store for rounds after runs."""

    def __call__(
        self,
        after_run: AfterRun,
        *,
        clock: Clock,
        random: Random,
        metrics: MetricsRegistry | None,
        open_location: OpenLocation,
    ) -> AbstractContextManager[AfterRunStep]:
        """Yield the function to call after each run; close the stores with the context."""


def load_open_rounds() -> OpenRounds:
    """Return what the installed packages provide. Raise `ConfigError` if none, or more than one, provides rounds."""
    found = entry_points(group=ENTRY_POINTS)
    if len(found) == 1:
        return cast("OpenRounds", next(iter(found)).load())
    if not found:
        raise ConfigError(
            "replicas.run",
            f"no installed package can replicate: the entry point group `{ENTRY_POINTS}` is empty",
            hint="install keyfold again, or remove `replicas.run` and use `keyfold replica run`",
        )
    raise ConfigError(
        "replicas.run",
        f"more than one package can replicate: {', '.join(sorted(each.value for each in found))}",
        hint="uninstall all but one of them",
    )
