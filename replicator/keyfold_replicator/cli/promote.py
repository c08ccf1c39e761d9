"""`keyfold replica promote` and `demote`: change which log is the source (`promotion.steps` has the steps)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import click

from keyfold.cli.context import world_of
from keyfold.cli.log_options import dry_run_option, topics_option
from keyfold.errors import KeyfoldError
from keyfold.runtime.terminal import echo, echo_json
from keyfold_replicator.cli.environment import context_of
from keyfold_replicator.cli.holds import drop_holds
from keyfold_replicator.cli.locations import (
    PlaceType,
    allowed_credentials,
    open_replica,
    open_side,
    registry_of,
)

if TYPE_CHECKING:
    from keyfold.log.commit import Pinned
    from keyfold.replicas.documents import Registration
    from keyfold_replicator.promotion.steps import PromotionContext, PromotionOutcome
    from keyfold_replicator.registry.replica_pair import LogDirectory

_AT_ONCE = 16

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document: a list of partitions.")


@click.command(
    short_help="Make a replica the source.",
    epilog="Examples: keyfold replica promote s3://log/topics dr --dry-run, "
    "keyfold replica promote s3://log-dr/topics --force",
)
@click.argument("place", metavar="PLACE", type=PlaceType())
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--source", metavar="SOURCE", type=PlaceType(), help="Location of the source. Without NAME only.")
@topics_option
@click.option("--old-name", metavar="NAME", help="Name of the old source as a replica of the new one.")
@click.option("--force", is_flag=True, help="If the source does not answer, promote with what the replica has.")
@click.option(
    "--without-source", is_flag=True, help="Do not contact the source, because it is damaged. Without NAME only."
)
@dry_run_option
@json_option
@click.pass_context
def promote(
    ctx: click.Context,
    place: str,
    name: str | None,
    source: str | None,
    topics: Sequence[str],
    old_name: str | None,
    *,
    force: bool,
    without_source: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a replica the source. No record is lost as long as the source answers.

    PLACE is the source's URL or configuration file, with the NAME of the replica; or the replica's own, and then the
    replica names its source. The command fences the source's sink and compactor, copies what the replica lacks, makes
    the replica an independent log, and makes the old source its replica. Stop the sink before, and start it with the
    new bucket afterwards.

    If the source does not answer, it cannot be fenced, and its newest records cannot be copied. Then --force promotes
    the replica without the source.
    """
    topics = tuple(topics)
    if without_source and (name is not None or source is not None):
        raise click.UsageError("--without-source requires the replica's own PLACE, without NAME and --source")
    if name is not None:
        ours = open_side(ctx, place)
        registration = registry_of(ctx, ours).load(name)
        theirs = open_replica(ctx, registration, allowed_credentials(place))
        switch: _Switch | _Forced = _Switch(
            ctx, ours, theirs, name, registration, topics, old_name, sorted(_replicas_at(ctx, theirs, topics))
        )
    else:
        theirs = open_side(ctx, place)
        if without_source:
            switch = _Forced(ctx, theirs, sorted(_replicas_at(ctx, theirs, topics)), "--without-source")
        else:
            switch = _from_replica(ctx, theirs, source, topics, old_name, force=force)
    outcomes = switch.check()
    if not dry_run and all(found.is_fit for found in outcomes):
        outcomes = switch.switch(outcomes)
    _tell(outcomes, "promoted", as_json=as_json)
    if not outcomes:
        raise KeyfoldError(f"no replica of these topics found at {theirs.url}")
    if not dry_run and all(found.is_fit for found in outcomes) and not as_json:
        switch.say_what_is_next()
    raise click.exceptions.Exit(0 if all(found.is_fit for found in outcomes) else 1)


@click.command(
    short_help="Make an old source a replica of the new one.",
    epilog="Example: keyfold replica demote s3://log/topics --to-replica-of s3://log-dr/topics --dry-run",
)
@click.argument("old", metavar="OLD", type=PlaceType())
@click.option(
    "--to-replica-of", "new", metavar="NEW", required=True, type=PlaceType(), help="Location of the new source."
)
@click.option("--name", metavar="NAME", help="Name of OLD as a replica of NEW. Default: the name of its bucket.")
@topics_option
@click.option("--discard", is_flag=True, help="Give up the records that only OLD has.")
@dry_run_option
@json_option
@click.pass_context
def demote(
    ctx: click.Context,
    old: str,
    new: str,
    name: str | None,
    topics: Sequence[str],
    *,
    discard: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make an old source, which came back after a fail-over, a replica of the new one.

    From then on its sink and compactor cannot write to it. If OLD has records that NEW does not have, the command shows
    them and refuses to continue without --discard. Save them first with `keyfold log export` or `keyfold restore`.
    """
    from keyfold_replicator.promotion.steps import Demotion

    before, after = open_side(ctx, old), open_side(ctx, new)
    called = _replica_name(name, before)
    demotion = Demotion(before, after, _promotion_context(ctx, "", called), discard=discard)
    pairs = _pairs(before, lambda topic: not topics or topic in topics)
    outcomes = demotion.check(pairs)
    if not dry_run and all(found.is_fit for found in outcomes):
        outcomes = demotion.switch(outcomes)
    _tell(outcomes, "demoted", as_json=as_json)
    if not outcomes:
        raise KeyfoldError(f"no log of these topics found at {before.url}")
    is_done = not dry_run and all(found.is_fit for found in outcomes)
    if is_done and not as_json:
        _say_how_to_go_on(after.url, called, before.url)
        for left in registry_of(ctx, before).names():
            echo(f"note: replica {left} is still registered at the old source: keyfold replica remove {old} {left}")
    raise click.exceptions.Exit(0 if all(found.is_fit for found in outcomes) else 1)


@dataclass(slots=True)
class _Switch:
    """A promotion whose source answers."""

    ctx: click.Context
    ours: LogDirectory
    theirs: LogDirectory
    name: str
    registration: Registration | None
    topics: Collection[str]
    old_name: str | None
    pairs: Sequence[tuple[str, int]] = ()

    def check(self) -> list[PromotionOutcome]:
        """Check all partitions of the registration on either side, or those of the replica if it is not registered."""
        pairs = {pair for pair in self.pairs if self._covers(pair[0])}
        if self.registration is not None:
            pairs |= {*_pairs(self.ours, self._covers)}
        found: list[PromotionOutcome] = self._over().check(sorted(pairs))
        return found

    def switch(self, checked: Sequence[PromotionOutcome]) -> list[PromotionOutcome]:
        """Pause the replica, bring it up to date, and switch. Resume the replica unless everything was switched."""
        was_running = self.registration is not None and not self.registration.is_paused
        registry = registry_of(self.ctx, self.ours)
        if was_running:
            registry.pause(self.name)
        is_over = False
        try:
            checked = self._with_last_round(checked)
            if not all(found.is_fit for found in checked):
                return [*checked]
            done: list[PromotionOutcome] = self._over().switch(checked)
            is_over = all(found.is_fit for found in done) and not self.topics
            if is_over and self.registration is not None:
                registry.remove(self.name)
                drop_holds(self.ctx, self.ours, self.registration.hold_name)
            return done
        finally:
            if was_running and not is_over:
                registry.resume(self.name)

    def _with_last_round(self, checked: Sequence[PromotionOutcome]) -> Sequence[PromotionOutcome]:
        """Replicate before the source is fenced, so that the last round is short and errors are known."""
        from keyfold_replicator.promotion.steps import PromotionStep, with_errors

        if all(found.step is PromotionStep.DONE for found in checked):
            return checked
        errors = self._last_round()
        if any(found.step is PromotionStep.MISSING for found in checked):
            checked = self.check()
        return with_errors(checked, errors)

    def say_what_is_next(self) -> None:
        """Print how to replicate from the new source to the old one."""
        _say_how_to_go_on(self.theirs.url, self._called, self.ours.url)

    @property
    def _called(self) -> str:
        return _replica_name(self.old_name, self.ours)

    def _covers(self, topic: str) -> bool:
        if self.topics and topic not in self.topics:
            return False
        return self.registration is None or self.registration.covers(topic)

    def _over(self) -> Any:
        from keyfold_replicator.promotion.steps import SwitchOver

        world = _promotion_context(self.ctx, self.name, self._called)
        return SwitchOver(self.ours, self.theirs, world, self._last_round)

    def _last_round(self) -> dict[tuple[str, int], str]:
        """Copy what the replica lacks, even if the replica is paused. Return errors by partition."""
        from keyfold_replicator.promotion.last_round import last_round

        return last_round(self.ours, self.theirs, self.name, self.registration, self._covers, context_of(self.ctx))


@dataclass(slots=True)
class _Forced:
    """A promotion without the source."""

    ctx: click.Context
    theirs: LogDirectory
    pairs: Sequence[tuple[str, int]]
    why: str

    def check(self) -> list[PromotionOutcome]:
        """Check all replicas at the place, including promoted ones."""
        found: list[PromotionOutcome] = self._over().check(self.pairs)
        return found

    def switch(self, checked: Sequence[PromotionOutcome]) -> list[PromotionOutcome]:
        """Promote without the source."""
        done: list[PromotionOutcome] = self._over().switch(checked)
        return done

    def say_what_is_next(self) -> None:
        """Print what was not done at the source, and what to do before it comes back."""
        echo(
            f"note: the source was not contacted ({self.why}). Records that the replica had not received are not here,"
        )
        echo("      and the source's sink and compactor are not fenced. Stop them before the source comes back; then:")
        echo(f"next: keyfold replica demote <old source> --to-replica-of {self.theirs.url} --dry-run")

    def _over(self) -> Any:
        from keyfold_replicator.promotion.steps import FailOver

        return FailOver(self.theirs, _promotion_context(self.ctx, "", ""))


def _from_replica(
    ctx: click.Context,
    theirs: LogDirectory,
    source: str | None,
    topics: Collection[str],
    old_name: str | None,
    *,
    force: bool,
) -> _Switch | _Forced:
    """Promote with the source that the replica names or that was given; without it if it does not answer."""
    from keyfold.replicas.registry import NotRegistered

    found = _replicas_at(ctx, theirs, topics)
    followed = {state for state in found.values() if state is not None}
    sources, names = {url for url, _ in followed}, {name for _, name in followed}
    if len(names) > 1 or (source is None and len(sources) > 1):
        listed = ", ".join(f"`{name}` of {url}" for url, name in sorted(followed))
        raise KeyfoldError(f"{theirs.url} has replicas of more than one source: {listed}", hint="select with --topic")
    if not followed:
        return _Forced(ctx, theirs, sorted(found), "nothing is left to promote")
    (name,) = names
    try:
        ours = open_side(ctx, source if source is not None else min(sources))
        try:
            registration = registry_of(ctx, ours).load(name)
        except NotRegistered:
            registration = None
        if not _pairs(ours, lambda topic: not topics or topic in topics):
            raise KeyfoldError(f"no log found at {ours.url}")
    except KeyfoldError as error:
        if force:
            return _Forced(ctx, theirs, sorted(found), error.message)
        raise KeyfoldError(
            f"the source cannot be read: {error.message}",
            hint="name a location with --source; or use --force, which gives up records that the replica does not have",
        ) from error
    return _Switch(ctx, ours, theirs, name, registration, topics, old_name, sorted(found))


def _replicas_at(
    ctx: click.Context, theirs: LogDirectory, topics: Collection[str]
) -> dict[tuple[str, int], tuple[str, str] | None]:
    """Return the replicas at a place, with the source that each follows and its name there; None if it was promoted.

    Replicas whose first copy is not complete are included. Logs that never were replicas are included only if their
    topics are given.
    """
    from keyfold.errors import FirstCopyUnfinished, LogNotFound, ManifestLost
    from keyfold.log.partition_log import PartitionLog

    world = world_of(ctx)

    def load(pair: tuple[str, int]) -> Pinned | FirstCopyUnfinished | None:
        random = Random(world.random.getrandbits(64))
        try:
            return PartitionLog(theirs.store, theirs.place(*pair), clock=world.clock, random=random).load()
        except FirstCopyUnfinished as error:
            return error
        except (LogNotFound, ManifestLost):
            return None

    pairs = _pairs(theirs, lambda topic: not topics or topic in topics)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="keyfold-places") as pool:
        manifests = list(zip(pairs, pool.map(load, pairs), strict=True))
    found: dict[tuple[str, int], tuple[str, str] | None] = {}
    for (topic, partition), pinned in manifests:
        if pinned is None:
            continue
        if isinstance(pinned, FirstCopyUnfinished):
            if pinned.source:
                found[topic, partition] = (pinned.source, pinned.replica)
            continue
        state = pinned.manifest.replica
        if state is not None:
            found[topic, partition] = (state.source, state.name)
        elif topics or pinned.manifest.lineage:
            found[topic, partition] = None
    return found


def _pairs(side: LogDirectory, covers: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Return the topics and partitions at one side."""
    from keyfold.log import catalog

    return [(p.topic, p.partition) for p in catalog.places(side.store, side.topics_dir) if covers(p.topic)]


def _promotion_context(ctx: click.Context, name: str, old_name: str) -> PromotionContext:
    from keyfold_replicator.promotion.steps import PromotionContext

    world = world_of(ctx)
    return PromotionContext(world.clock, Random(world.random.getrandbits(64)), name, old_name)


def _replica_name(name: str | None, side: LogDirectory) -> str:
    """Return the name of a log directory as a replica. Raise `ConfigError` if it is not a valid name."""
    from keyfold.replicas.documents import require_name

    called = (
        name if name is not None else re.sub(r"[^A-Za-z0-9._-]", "-", side.url.partition("://")[2].partition("/")[0])
    )
    require_name(called)
    return called


def _say_how_to_go_on(new_url: str, name: str, old_url: str) -> None:
    echo(f"next: run the sink and the compactor with {new_url}; to replicate to the old source:")
    echo(f"      keyfold replica add {new_url} {name} --to {old_url} --enable-compaction")


def _tell(outcomes: Sequence[PromotionOutcome], done: str, *, as_json: bool) -> None:
    from keyfold_replicator.cli.show import outcome_json, outcomes_lines

    if as_json:
        echo_json([outcome_json(found) for found in outcomes])
        return
    for line in outcomes_lines(outcomes, done):
        echo(line)
