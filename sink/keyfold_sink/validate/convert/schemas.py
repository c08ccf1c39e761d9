"""Schemas by id: known, requested or refused. The main thread looks them up; other threads request and store them.

    find ──unknown──► request ──► registry ──► compile ──► store beside the log ──► known
                                     │            │              │
                            no answer: retry   no Avro: refuse   no answer: retry
                            for too long: an error

A schema counts as known once it is stored, so every record in the log has its schema there. If the registry does not
know a schema, that counts only after the third answer, as a follower may lag, and only for a minute. `find` raises
errors that no record caused once; the next call requests the schema again.

`RegistryRetry.give_up_after_s` limits the duration of an outage, not of each request: otherwise a hundred partitions
would give up one after another. An outage says nothing about a record, so no record is skipped for it, whatever
`errors.tolerance` is.

The number of known schemas is limited; the least recently used one is dropped first.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from random import Random
from typing import Final, TypeVar

import structlog

from keyfold.errors import KeyfoldError
from keyfold.formats.avro_resolve import Action, resolve_framed
from keyfold.formats.avro_schema import NotAvro, avro_type
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.formats.schema_bounds import SchemaTooLarge, require_bounded, require_bounded_text
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff
from keyfold_sink.validate.convert.avro_layout import Step, compile_check
from keyfold_sink.validate.convert.avro_schema import AvroSchemaInvalid, stand_alone
from keyfold_sink.validate.convert.registry_api import (
    AVRO,
    RegisteredSchema,
    RegistryGivenUp,
    RegistryRefused,
    SchemaKey,
    SchemaRegistry,
    SchemaUnknown,
)

ASKERS: Final = 8
_FIRST_DELAY_MS: Final = 100
_DELAY_MAX_MS: Final = 10_000
_SAY_SO_AFTER_S: Final = 1.0
_LOOKS: Final = 3
# Failures further apart than this belong to different outages, because there was no request in between.
_OUTAGE_GAP_S: Final = 300.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema with the checks of its records.

    `check` finds where one value ends. `action` reads many values at once; it is None if only `check` knows the schema.
    """

    check: Step
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class RefusedSchema:
    """A schema whose records all fail, with the reason."""

    cause: str
    message: str


Answer = KnownSchema | RefusedSchema
_Result = Answer | KeyfoldError


@dataclass(frozen=True, slots=True)
class RegistryRetry:
    """How to retry while a registry does not answer; without limit if `give_up_after_s` is None."""

    delays: Backoff = field(default_factory=lambda: Backoff(_FIRST_DELAY_MS, _DELAY_MAX_MS))
    give_up_after_s: float | None = None


def registry_retry(retry_timeout_ms: int, retry_delay_max_ms: int) -> RegistryRetry:
    """Return the retries that `errors.retry.timeout` and `errors.retry.delay.max.ms` describe."""
    longest_ms = max(1, retry_delay_max_ms)
    delays = Backoff(min(_FIRST_DELAY_MS, longest_ms), longest_ms)
    return RegistryRetry(delays, None if retry_timeout_ms < 0 else retry_timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class SchemaTimings:
    """Times for schemas that the registry does not know or that are refused."""

    look_again_s: float = 0.5
    """Delay before the registry is asked again, as a follower may lag."""
    refused_for_s: float = 60.0
    """Delay before a refused schema is requested again."""


class _Closed(Exception):
    """Raised when the asker is closed during a wait."""


class Schemas:
    """The schemas of one registry. Only the main thread uses it."""

    def __init__(
        self,
        registry: SchemaRegistry,
        archive: SchemaArchive,
        *,
        clock: Clock,
        random: Random,
        cache_size: int,
        retry: RegistryRetry | None = None,
        timings: SchemaTimings | None = None,
    ) -> None:
        self._timings = timings or SchemaTimings()
        look_again_s = self._timings.look_again_s
        self._asker = _Asker(registry, archive, clock, random, retry or RegistryRetry(), look_again_s)
        self._clock = clock
        self._cache_size = cache_size
        self._answers: OrderedDict[SchemaKey, tuple[Answer, float]] = OrderedDict()
        self._errors: dict[SchemaKey, KeyfoldError] = {}
        self._asked: set[SchemaKey] = set()

    def find(self, key: SchemaKey) -> Answer | None:
        """Return a known or refused schema, None if it must be requested or is. Raise the error of its request."""
        found = self._answers.get(key)
        if found is None:
            error = self._errors.get(key)
            if error is not None:
                self._errors.clear()  # the other failed schemas are requested again too
                raise error
            return None
        answer, until_s = found
        if isinstance(answer, RefusedSchema) and self._clock.monotonic_s() >= until_s:
            del self._answers[key]
            return None
        self._answers.move_to_end(key)
        return answer

    def request(self, keys: Collection[SchemaKey]) -> None:
        """Request these schemas, as many as the cache can hold. The others wait for the next call."""
        for key in keys:
            if len(self._asked) >= self._cache_size:
                return
            if key not in self._asked:
                self._asked.add(key)
                self._asker.request(key)

    def pending(self) -> bool:
        """Whether a request has no answer yet."""
        self._take_answers()
        return bool(self._asked)

    def close(self) -> None:
        """Stop requests."""
        self._asker.close()

    def _take_answers(self) -> None:
        for key, result in self._asker.answers():
            self._asked.discard(key)
            if isinstance(result, KeyfoldError):
                self._errors[key] = result
            else:
                self._answers[key] = (result, self._clock.monotonic_s() + self._timings.refused_for_s)
        while len(self._answers) > self._cache_size:
            self._answers.popitem(last=False)


@dataclass(frozen=True, slots=True, order=True)
class _Question:
    """A request for `key`, due at `due_s`. The registry may answer `looks` more times that it does not know it."""

    due_s: float
    number: int
    key: SchemaKey = field(compare=False)
    looks: int = field(compare=False, default=_LOOKS - 1)


class _Outage:
    """Since when a registry has not answered. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first_s: float | None = None
        self._last_s = 0.0

    def over(self) -> None:
        """Record an answer."""
        with self._lock:
            self._first_s = None

    def goes_on(self, longest_delay_s: float) -> float:
        """Record a missing answer, and return for how many seconds the outage has lasted."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._first_s is None or now_s - self._last_s > _OUTAGE_GAP_S + longest_delay_s:
                self._first_s = now_s
            self._last_s = now_s
            return now_s - self._first_s


class _Asker:
    """The threads that request schemas. They are daemons, so a registry that hangs does not keep the process alive.

    A repeated request for an unknown schema waits in the queue and not on a thread, as there may be a thousand of them.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        archive: SchemaArchive,
        clock: Clock,
        random: Random,
        retry: RegistryRetry,
        look_again_s: float,
    ) -> None:
        self._registry = registry
        self._archive = archive
        self._clock = clock
        self._random = random
        self._retry = retry
        self._look_again_s = look_again_s
        self._outage = _Outage(clock)
        self._numbers = count()
        self._questions: PriorityQueue[_Question] = PriorityQueue()
        self._results: SimpleQueue[tuple[SchemaKey, _Result]] = SimpleQueue()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._events = structlog.get_logger("keyfold.sink")

    def request(self, key: SchemaKey) -> None:
        self._questions.put(_Question(self._clock.monotonic_s(), next(self._numbers), key))
        if len(self._threads) < ASKERS:
            thread = threading.Thread(target=self._run, name="keyfold-schemas", daemon=True)
            self._threads.append(thread)
            thread.start()

    def answers(self) -> list[tuple[SchemaKey, _Result]]:
        found: list[tuple[SchemaKey, _Result]] = []
        while True:
            try:
                found.append(self._results.get_nowait())
            except Empty:
                return found

    def close(self) -> None:
        self._closed.set()
        for _ in self._threads:
            self._questions.put(_Question(float("-inf"), next(self._numbers), ""))  # wakes a waiting thread
        self._registry.close()

    def _run(self) -> None:
        with contextlib.suppress(_Closed):
            while True:
                question = self._questions.get()
                self._wait(max(0.0, question.due_s - self._clock.monotonic_s()))
                result = self._answer(question)
                if result is None:
                    due_s = self._clock.monotonic_s() + self._look_again_s
                    self._questions.put(_Question(due_s, next(self._numbers), question.key, question.looks - 1))
                    continue
                self._results.put((question.key, result))
                if isinstance(result, RegistryRefused | RegistryGivenUp):
                    self._refuse_the_rest(result)

    def _refuse_the_rest(self, error: RegistryRefused | RegistryGivenUp) -> None:
        """Fail all pending requests, as a thousand requests with wrong credentials may lock the account."""
        with contextlib.suppress(Empty):
            while not self._closed.is_set():
                self._results.put((self._questions.get_nowait().key, error))

    def _answer(self, question: _Question) -> _Result | None:
        """Return the result of a request, None if it must be repeated."""
        key = question.key
        try:
            registered = self._repeat(lambda: self._asked(key))
            if registered.kind != AVRO:
                return RefusedSchema("not an Avro schema", f"schema {key} is {registered.kind}, not Avro")
            text, known = read_schema(registered)
            self._repeat(lambda: self._archive.add(key, text, self._registry.url))
        except SchemaUnknown as error:
            return None if question.looks else RefusedSchema("unknown schema", f"schema {key}: {error}")
        except AvroSchemaInvalid as error:
            return RefusedSchema("unusable schema", f"schema {key} cannot be used: {error}")
        except KeyfoldError as error:
            return error
        except _Closed:
            raise
        except Exception as error:  # a thread that dies would leave its request without an answer
            if self._closed.is_set():
                raise _Closed from error
            return KeyfoldError(f"the request for schema {key} failed: {error!r}")
        else:
            return known

    def _asked(self, key: SchemaKey) -> RegisteredSchema:
        """Ask the registry once. Raise `RegistryGivenUp` if it has not answered for too long."""
        try:
            found = self._registry.schema(key)
        except KeyfoldError as error:
            retry_timeout_s = self._retry.give_up_after_s
            if not error.retriable:
                self._outage.over()
                raise
            lasts_s = self._outage.goes_on(self._retry.delays.cap_ms / 1000)
            if retry_timeout_s is not None and lasts_s >= retry_timeout_s:
                raise RegistryGivenUp(error.message, lasts_s) from error
            raise
        except SchemaUnknown:
            self._outage.over()
            raise
        self._outage.over()
        return found

    def _repeat(self, call: Callable[[], T]) -> T:
        """Retry while the error is retriable."""
        for delay_s in self._retry.delays.delays_s(self._random):
            if self._closed.is_set():
                raise _Closed
            try:
                return call()
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                if delay_s >= _SAY_SO_AFTER_S:
                    self._events.warning("waiting for a schema", error=str(error), again_in_s=delay_s)
            self._wait(delay_s)
        raise AssertionError  # the delays are endless

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise _Closed


def read_schema(registered: RegisteredSchema) -> tuple[str, KnownSchema]:
    """Return the text to store and the checks. The registry has validated the schema. Raise `AvroSchemaInvalid`."""
    try:
        schema, text = _load(registered.text)
        if registered.referenced:
            schema = stand_alone(schema, [_load(other)[0] for other in registered.referenced])
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        require_bounded_text(len(text.encode()))
        require_bounded(schema)
        return text, KnownSchema(compile_check(schema), _action(schema))
    except SchemaTooLarge as error:
        raise AvroSchemaInvalid(str(error)) from error
    except KeyError as error:
        raise AvroSchemaInvalid(f"it is not a valid Avro schema: a definition has no {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise AvroSchemaInvalid(f"it is not a valid Avro schema: {error}") from error
    except RecursionError as error:
        raise AvroSchemaInvalid("it is nested too deeply") from error


def _action(schema: object) -> Action | None:
    try:
        written = avro_type(schema, defaults=False)
    except NotAvro:
        return None
    return resolve_framed(schema, written, written)


def _load(text: str) -> tuple[object, str]:
    """Parse a schema, and return it with its JSON; like Java's parser, accept the bare name of a primitive type."""
    try:
        return json.loads(text), text
    except ValueError:
        name = text.strip()
        return name, json.dumps(name)
