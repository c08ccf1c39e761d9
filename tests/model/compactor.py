"""The compactor: it claims, plans any pass that the rules allow, uploads, replaces, expires, forgets what is gone."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.log.names import Role
from keyfold_compactor.decide.horizon import due_epochs
from tests.model import passes, truth
from tests.model.book import GONE, EditKey, short
from tests.model.protocol import CLAIM, COMMIT, CREATES, EXPIRE, FORGET, IDLE, NONE, READY, UPLOAD, State, Step, Writer
from tests.model.rules import Bounds, Rules
from tests.model.writers import Writers, idle


class Compactors(Writers):
    """What a compactor may do."""

    def __init__(self, kafka: truth.KafkaLog = truth.FOUR, *, rules: Rules | None = None, bounds: Bounds) -> None:
        super().__init__(kafka, rules=rules, bounds=bounds)
        self._plans: dict[object, list[int]] = {}
        self._plan_values: list[passes.Plan] = [passes.Plan(0, (), "")]
        self._plan_stamps: list[int] = [0]
        self._last_plans: set[int] = set()
        self._forgotten: list[frozenset[str]] = [frozenset()]
        self._forget_numbers: dict[frozenset[str], int] = {}
        self._expired: list[tuple[int, ...]] = [()]
        self._expire_numbers: dict[tuple[int, ...], int] = {}

    def compactor_steps(self, state: State, at: int) -> Iterator[Step]:
        """Everything that compactor `at` may do next."""
        compactor, who, role = state.compactors[at], f"compactor{at}", Role.COMPACTOR
        manifest = self.book.manifest[state.manifest]
        if compactor.step == IDLE:
            if compactor.left and state.manifest != GONE and manifest.segments:
                begun = compactor._replace(left=compactor.left - 1, to=self.bounds.parts)
                yield from self.claim(state, role, at, begun, f"{who} begins a pass, reads")
            return
        if state.faults:
            crashed = self.with_writer(state, role, at, idle(compactor))
            yield (f"{who} crashes",), crashed._replace(faults=state.faults - 1)
        if compactor.step == CLAIM:
            yield from self.claiming(state, role, at, compactor, who)
        elif state.manifest == GONE:
            yield (f"{who} finds the manifest gone: stops",), self.with_writer(state, role, at, idle(compactor))
        elif compactor.step == READY:
            yield from self._ready(state, at, compactor, who)
        elif compactor.step == UPLOAD:
            plan = self._plan_values[compactor.at]
            yield from self._upload_plan(state, at, compactor, plan, who)
            renamed = compactor._replace(step=READY, attempt=compactor.attempt + 1, at=0)
            yield (f"{who} plans again under other names",), self.with_writer(state, role, at, renamed)
        elif compactor.step == FORGET:
            ready = compactor._replace(step=READY, at=0, pending=NONE)
            key: EditKey = ("forget", compactor.epoch, self._forgotten[compactor.at])
            yield from self.commit(state, role, at, compactor, who, key, ready, frozenset())
        elif compactor.step == EXPIRE:
            ready = compactor._replace(step=READY, at=0, pending=NONE)
            key = ("expire", compactor.epoch, *self._expired[compactor.at])
            yield from self.commit(state, role, at, compactor, who, key, ready, frozenset())
        else:
            plan = self._plan_values[compactor.at]
            replacement = self.book.replacement(plan.replacement)
            more = compactor._replace(
                step=READY, at=0, to=compactor.to - 1, pending=NONE, attempt=compactor.attempt + 1
            )
            is_last = compactor.at in self._last_plans
            won = idle(compactor) if is_last else more
            key = self._replace_key(compactor)
            yield from self.commit(state, role, at, compactor, who, key, won, replacement.objects())

    def _ready(self, state: State, at: int, compactor: Writer, who: str) -> Iterator[Step]:
        manifest, role = self.book.manifest[state.manifest], Role.COMPACTOR
        if manifest.compactor.epoch != compactor.epoch and self.rules.epoch_required:
            yield (f"{who} is fenced: stops",), self.with_writer(state, role, at, idle(compactor))
            return
        plans = [n for whole in (True, False)[: 1 + (compactor.to > 0)] for n in self._planned(state, compactor, whole)]
        for number in plans:
            plan = self._plan_values[number]
            yield from self._upload_plan(state, at, compactor._replace(at=number), plan, who)
        if not plans:
            yield (f"{who} has nothing to do",), self.with_writer(state, role, at, idle(compactor))
        if state.expires:
            yield from self._expire_steps(state, at, compactor, who)
        there = {self.book.blob(b).name for b in state.objects}
        gone = frozenset(r.name for r in manifest.replaced if r.name not in there)
        if gone and self.bounds.forgets:
            number = self._forget_numbers.setdefault(gone, len(self._forgotten))
            if number == len(self._forgotten):
                self._forgotten.append(gone)
            forgetting = compactor._replace(step=FORGET, at=number)
            told = f"{who} forgets {', '.join(map(short, sorted(gone)))}"
            yield (told,), self.prepare(state, role, at, forgetting, ("forget", compactor.epoch, gone))

    def _expire_steps(self, state: State, at: int, compactor: Writer, who: str) -> Iterator[Step]:
        """Retention judges the segments of the newest manifest: any number of the first may be past it."""
        entries = tuple(self.book.add_entry(entry) for entry in self.book.manifest[state.manifest].segments)
        for count in range(1, len(entries) + 1):
            judged = entries[:count]
            number = self._expire_numbers.setdefault(judged, len(self._expired))
            if number == len(self._expired):
                self._expired.append(judged)
            expiring = compactor._replace(step=EXPIRE, at=number)
            left = state._replace(expires=state.expires - 1)
            told = f"{who} finds {count} segments past retention"
            yield (told,), self.prepare(left, Role.COMPACTOR, at, expiring, ("expire", compactor.epoch, *judged))

    def _planned(self, state: State, compactor: Writer, whole: bool) -> list[int]:
        now, wait = self.due_at(state)
        manifest = self.book.manifest[state.manifest]
        attempt = compactor.attempt if self.rules.names == "fresh" else 0
        due = due_epochs(manifest, wait, now)
        job = passes.Job(manifest, compactor.epoch, attempt, due, may_mark=whole or self.rules.every_part_marks)
        stamp = self.now(state)
        key = (state.manifest, compactor.epoch, attempt, job.due, stamp, whole)
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = []
            for plan in passes.plans(self.book, self.rules, job, whole=whole):
                known.append(len(self._plan_values))
                if whole:
                    self._last_plans.add(len(self._plan_values))
                self._plan_values.append(plan)
                self._plan_stamps.append(stamp)
        return known

    def _replace_key(self, compactor: Writer) -> EditKey:
        number = compactor.at
        plan = self._plan_values[number]
        is_part = number not in self._last_plans
        return ("replace", compactor.epoch, plan.replacement, self._plan_stamps[number], is_part)

    def _upload_plan(self, state: State, at: int, compactor: Writer, plan: passes.Plan, who: str) -> Iterator[Step]:
        role = Role.COMPACTOR
        after, refused = self.put(state, plan.uploads) if plan.uploads else (state, "")
        if refused == "taken" and self.rules.upload_unknown != "other bytes":
            renamed = compactor._replace(step=READY, attempt=compactor.attempt + 1, at=0)
            yield (f"{who} finds its names taken",), self.with_writer(state, role, at, renamed)
            return
        committing = compactor._replace(step=COMMIT)
        words = plan.words.replace("{", "{{").replace("}", "}}")
        told = f"{who} uploads: {words}" + (f", 412 ({refused}): takes it for its own" if refused else "")
        yield (told,), self.prepare(after, role, at, committing, self._replace_key(committing))
        if state.faults and plan.uploads:
            late = self.late(state, (CREATES, plan.uploads))
            unknown = compactor._replace(step=UPLOAD)
            if self.rules.upload_unknown == "other bytes":
                unknown = compactor._replace(step=READY, at=0)
            yield (f"{who}'s upload times out: {words}",), self.with_writer(late, role, at, unknown)
