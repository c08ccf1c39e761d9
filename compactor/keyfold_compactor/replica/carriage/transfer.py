"""Objects from one bucket into another: each once, whole or not at all, only with the bytes that the manifest names.

    Transfer.copy(jobs)      one call per round; many may run at once and share the threads fairly

A job is an object of a partition that the source's manifest names, with its size and SHA-256. How one is carried is
said in `keyfold_compactor.replica.carriage.carry`; here is who carries what when.

    threads     shared by all calls. A call has at most as many jobs under way as there are threads, and they are taken
                in turn, so a partition with ten thousand objects does not keep one with two waiting
    memory      each job takes what it may hold out of one budget before it begins
    failing     a call that failed begins no more jobs, and tells why when those under way have ended
    stopping    `close`, or giving up the iterator: jobs under way end before their next range
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Self

from keyfold.errors import KeyfoldError, ObjectNotFound
from keyfold.retry import Patience
from keyfold.store.api import ObjectStore
from keyfold.store.pace import Pacer
from keyfold_compactor.replica.carriage.carry import Carrier
from keyfold_compactor.replica.carriage.jobs import CopyJob, CopyResult, TransferStopped
from keyfold_compactor.replica.carriage.memory import Memory

DEFAULT_THREADS: Final = 16
DEFAULT_MEMORY_BYTES: Final = 192 * 1024 * 1024
_CLOSED: Final = "the copy was stopped"


class Transfer:
    """Copies between two stores, with one set of threads for all partitions. Thread-safe; close it.

    `topics_dir` is the replica's; the source's is in each job's place. Bytes are paced by the stores (`S3Store` with a
    pacer: each byte is asked for as it comes in and again as it goes out), or here for stores that have none: `pacer`
    is asked for each byte once, as it is fetched. Copies inside a store move no bytes and are not paced.
    """

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        *,
        topics_dir: str,
        patience: Patience,
        threads: int = DEFAULT_THREADS,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pacer: Pacer | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread is needed, not {threads}")
        self._threads = threads
        self._stopping = threading.Event()
        memory = Memory(memory_bytes, self._stopping)
        self._carrier = Carrier(source, target, topics_dir, patience, memory, self._stopping, pacer=pacer)
        self._pool = ThreadPoolExecutor(threads, "keyfold-copy")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what is under way at its next range, and wait for it. Parts that were sent stay for the next process."""
        self._stopping.set()
        self._carrier.memory.wake()
        # What waits in the queue ends by itself, at once. To take it out would leave those who wait for it for ever.
        self._pool.shutdown()

    def copy(self, jobs: Iterable[CopyJob]) -> Generator[CopyResult]:
        """Copy each job's object; results as they come, in any order. Consume it: nothing happens before.

        Fails with one error after what was under way has ended (and was given out); what is at the replica stays there.
        `ObjectNotFound` (with the source's key): the *source* has not the object any more, plan again; it goes before
        all others. `Corrupt`: its bytes are not the manifest's. `ReplicaDiverged`: something else is under its name at
        the replica. `TransferStopped` after `close`. Else what the stores raise, when patience is over. Each error has
        the `host` of the store that it is about.
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
        """Copy kept schemas (`_schemas/<id>.avsc`) from the source's `topics_dir`; how many were sent.

        One that the source has not kept is passed over. Raises `StoreError` where the replica has another schema under
        the id: its topics directory belongs to another registry.
        """
        return sum(self._carrier.carry_schema(topics_dir, schema) for schema in schemas)

    def _submit(self, job: CopyJob, stop: threading.Event) -> Future[CopyResult]:
        try:
            return self._pool.submit(self._carrier.carry, job, stop)
        except RuntimeError as error:
            if not self._stopping.is_set():
                raise
            raise TransferStopped(_CLOSED) from error


def _failure(future: Future[CopyResult]) -> BaseException | None:
    return TransferStopped(_CLOSED) if future.cancelled() else future.exception()


def _rank(error: BaseException) -> int:
    """What is to be told first: what no retry mends but a new plan, then what nothing mends, then what passes."""
    if not isinstance(error, KeyfoldError):
        return 0
    if isinstance(error, ObjectNotFound):
        return 1
    return 3 if error.retriable else 2
