"""Copy objects between buckets: each once, completely or not at all, and only with the bytes that the manifest names.

    Transfer.copy(jobs)      one call per round; many may run at once and share the threads fairly

A job is an object of a partition that the source's manifest names, with its size and SHA-256.
`keyfold_replicator.copy.copy_object` copies one; this module schedules them.

    threads     shared by all calls. A call has at most as many jobs in progress as there are threads, and calls take
                turns, so a partition with ten thousand objects does not delay one with two
    memory      each job reserves the memory that it may need before it starts
    failing     a failed call starts no more jobs, and raises the error when those in progress have ended
    stopping    `close`, or closing the iterator: jobs in progress end before their next range
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Self

from keyfold.errors import KeyfoldError, ObjectNotFound
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.pacing import Pacer
from keyfold_replicator.copy.copy_object import ObjectCopier
from keyfold_replicator.copy.jobs import CopyJob, CopyResult, TransferStopped
from keyfold_replicator.copy.memory_budget import CopyMemoryBudget

DEFAULT_THREADS: Final = 16
DEFAULT_MEMORY_BYTES: Final = 192 * 1024 * 1024
_CLOSED: Final = "the copy was stopped"


class Transfer:
    """Copy between two stores, with one set of threads for all partitions. Thread-safe; close it.

    `topics_dir` is the replica's; the source's is in each job's place. A store that was opened with a pacer counts
    each byte when it is received and again when it is sent. For stores without a pacer, `pacer` counts each byte
    once, when it is fetched. Copies inside a store move no bytes and are not paced.
    """

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        *,
        topics_dir: str,
        retry: RetryPolicy,
        threads: int = DEFAULT_THREADS,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pacer: Pacer | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread is needed, not {threads}")
        self._threads = threads
        self._stopping = threading.Event()
        memory = CopyMemoryBudget(memory_bytes, self._stopping)
        self._copier = ObjectCopier(source, target, topics_dir, retry, memory, self._stopping, pacer=pacer)
        self._pool = ThreadPoolExecutor(threads, "keyfold-copy")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop copies at their next range, and wait for them. Sent parts stay for the next process."""
        self._stopping.set()
        self._copier.memory.wake()
        # Queued jobs end by themselves, at once. Cancelling them would leave their callers waiting forever.
        self._pool.shutdown()

    def copy(self, jobs: Iterable[CopyJob]) -> Generator[CopyResult]:
        """Copy each job's object; yield results in any order. Consume the iterator: nothing happens before.

        On failure, raise one error after the jobs in progress have ended (and were yielded); copied objects stay at the
        replica. `ObjectNotFound` (with the source's key) means that the *source* no longer has the object: plan again.
        It takes precedence over all others. `Corrupt`: the bytes are not the manifest's. `ReplicaDiverged`: something
        else has the name at the replica. `TransferStopped` after `close`. Otherwise what the stores raise when retries
        run out. Each error has the `host` of its store.
        """
        waiting = iter(jobs)
        stop = threading.Event()
        under_way: set[Future[CopyResult]] = set()
        failures: list[BaseException] = []
        try:
            while True:
                if not failures:
                    for job in itertools.islice(waiting, self._threads - len(under_way)):
                        under_way.add(self._submit(job, stop))
                if not under_way:
                    break
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                ended = [(future, _failure(future)) for future in done]
                failures += [error for _, error in ended if error is not None]
                for future, error in ended:
                    if error is None:
                        yield future.result()
        finally:
            stop.set()
            for future in under_way:
                future.cancel()
            wait(under_way)
        if failures:
            raise min(failures, key=_rank)

    def copy_schemas(self, topics_dir: str, schemas: Iterable[int | str]) -> int:
        """Copy kept schemas (`_schemas/<id>.avsc`) from the source's `topics_dir`; return how many were sent.

        A schema that the source has not kept is skipped. Raise `StoreError` if the replica has another schema for the
        id: its topics directory belongs to another registry.
        """
        return sum(self._copier.copy_schema(topics_dir, schema) for schema in schemas)

    def _submit(self, job: CopyJob, stop: threading.Event) -> Future[CopyResult]:
        try:
            return self._pool.submit(self._copier.copy_object, job, stop)
        except RuntimeError as error:
            if not self._stopping.is_set():
                raise
            raise TransferStopped(_CLOSED) from error


def _failure(future: Future[CopyResult]) -> BaseException | None:
    return TransferStopped(_CLOSED) if future.cancelled() else future.exception()


def _rank(error: BaseException) -> int:
    """Rank errors: first those that need a new plan, then permanent ones, then temporary ones."""
    if not isinstance(error, KeyfoldError):
        return 0
    if isinstance(error, ObjectNotFound):
        return 1
    return 3 if error.retriable else 2
