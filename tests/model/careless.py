"""Edits with a requirement removed, and stamps taken too early: how the planted bugs of the commit are made.

Each wraps the real edit; what is not broken on purpose stays the real code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keyfold.log import edits
from keyfold.log.edits import Edit, Replacement, Swap
from keyfold.log.manifest import UNSTAMPED, Manifest
from keyfold.log.names import ObjectName, Role, parse_name
from tests.model.book import EditKey
from tests.model.rules import Rules


def careless(rules: Rules) -> Callable[[EditKey, Edit], Edit] | None:
    """How these rules spoil an edit; None where they are the protocol's own."""
    if rules == Rules():
        return None

    def spoil(key: EditKey, edit: Edit) -> Edit:
        kind = key[0]
        if kind in {"append", "replace"} and not rules.epoch_required:
            edit = _any_epoch(edit, Role.SINK if kind == "append" else Role.COMPACTOR, _int(key[1]))
        if kind == "append" and not rules.next_offset_required:
            edit = _any_offset(edit, _int(key[3]), _int(key[4]))
        if kind == "append" and rules.upload_unknown == "keep over a new claim":
            edit = _any_name(edit, _int(key[1]))
        if kind == "replace" and rules.every_part_marks:
            edit = _marks_again(edit, is_whole=rules.every_part_is_whole or not key[4])
        if kind == "replace" and rules.range_from == "plan":
            edit = _range_as_planned(edit)
        if kind == "replace" and rules.unlink_stamp == "build":
            edit = _unlinked_at(edit, _int(key[3]))
        if kind == "replace" and rules.pass_stamp == "plan":
            edit = _passed_at(edit, _int(key[3]))
        return _expires(edit, rules, key[2:]) if kind == "expire" else edit

    return spoil


def _int(part: object) -> int:
    assert isinstance(part, int)
    return part


def _any_epoch(edit: Edit, role: Role, epoch: int) -> Edit:
    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        claimed = manifest.role(role).epoch
        done = edit(_with_epoch(manifest, role, epoch), seen_ms)
        return _with_epoch(done, role, claimed)

    return spoiled


def _with_epoch(manifest: Manifest, role: Role, epoch: int) -> Manifest:
    if role is Role.SINK:
        return replace(manifest, sink=replace(manifest.sink, epoch=epoch))
    return replace(manifest, compactor=replace(manifest.compactor, epoch=epoch))


def _any_offset(edit: Edit, base: int, end: int) -> Edit:
    """Append wherever the log ends: what was appended twice is there twice."""

    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        done = edit(replace(manifest, next_offset=base), seen_ms)
        return replace(done, next_offset=max(end, manifest.next_offset))

    return spoiled


def _any_name(edit: Edit, epoch: int) -> Edit:
    """Append an upload of an older epoch: the entry is shown to the edit under a name that it accepts."""

    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        old = {s.name for s in manifest.segments}
        done = edit(manifest, seen_ms)
        return replace(
            done,
            segments=tuple(
                s if s.name in old else replace(s, name=_older(s.name, epoch), index_name=_older(s.index_name, epoch))
                for s in done.segments
            ),
        )

    return spoiled


def _older(name: str, epoch: int) -> str:
    parsed = parse_name(name)
    assert parsed is not None
    kept = int(parsed.attempt, 16)
    return str(replace(parsed, epoch=kept, attempt=f"{0:016x}")) if kept and kept != epoch else name


def kept_name(name: ObjectName, epoch: int) -> ObjectName:
    """The name under which `_any_name` takes an upload of an older epoch."""
    return replace(name, epoch=epoch, attempt=f"{name.epoch:016x}")


def _range_as_planned(edit: Edit) -> Edit:
    """The new segments keep the range that they were made with, whatever the sink has done to the old ones since."""

    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        done = edit(manifest, seen_ms)
        old = {s.name for s in manifest.segments}
        return replace(
            done,
            segments=tuple(s if s.name in old else replace(s, next_offset=s.last_offset + 1) for s in done.segments),
        )

    return spoiled


def _marks_again(edit: Edit, *, is_whole: bool) -> Edit:
    """Marks in every part, which the edit would refuse; the parts count as whole, or as nothing."""

    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        done = edit(replace(manifest, last_pass_epoch=0), seen_ms)
        return done if is_whole else replace(done, last_pass_epoch=manifest.last_pass_epoch)

    return spoiled


def _unlinked_at(edit: Edit, now_ms: int) -> Edit:
    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        done = edit(manifest, seen_ms)
        return replace(
            done,
            replaced=tuple(
                replace(r, unlinked_at_ms=now_ms) if r.unlinked_at_ms == UNSTAMPED else r for r in done.replaced
            ),
        )

    return spoiled


def _passed_at(edit: Edit, now_ms: int) -> Edit:
    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        done = edit(manifest, seen_ms)
        return replace(
            done,
            passes=tuple(
                replace(p, committed_at_ms=now_ms) if p.committed_at_ms == UNSTAMPED else p for p in done.passes
            ),
        )

    return spoiled


def _expires(edit: Edit, rules: Rules, entries: tuple[object, ...]) -> Edit:
    """As many of the first segments as were judged, whatever they are by now; or just these, wherever they are."""

    def spoiled(manifest: Manifest, seen_ms: int) -> Manifest:
        if rules.expires == "as many":
            return edits.expire(_int(manifest.compactor.epoch), manifest.segments[: len(entries)])(manifest, seen_ms)
        done = edit(manifest, seen_ms)
        if rules.expires == "the first as listed":
            return done
        kept = manifest.segments[: len(entries) - 1] + manifest.segments[len(entries) :]
        if len(entries) < 2 or not kept:
            return done
        # The last of them alone goes, and leaves its range to the one before it.
        left = len(entries) - 2
        ranged = replace(kept[left], next_offset=manifest.segments[len(entries) - 1].next_offset)
        return replace(
            done,
            segments=(*kept[:left], ranged, *kept[left + 1 :]),
            log_start_offset=manifest.log_start_offset,
            replaced=manifest.replaced,
        )

    return spoiled


def still_listed(manifest: Manifest, replacement: Replacement) -> Replacement:
    """What a compactor that does not ask whether its segments are still listed would make of its replacement."""
    names = [(s.name, s.index_name) for s in manifest.segments]
    swaps = []
    for swap in replacement.swaps:
        left = tuple(e for e in swap.old if (e.name, e.index_name) in names)
        if left:
            swaps.append(Swap(left, swap.new))
    return replace(replacement, swaps=tuple(swaps))
