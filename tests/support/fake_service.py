"""A sink as a service in memory, which records its calls. For tests of the REST API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keyfold.http_server.protocol import ServerLimits
from keyfold.http_server.server import HttpServer
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.sockets import listening
from keyfold_sink.config.option_groups import REST
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.control import NoSuchTask, NotStopped, OffsetRefused
from keyfold_sink.rest.backend import Backend, Metrics
from keyfold_sink.rest.server import serve
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus, WorkerStatus
from keyfold_sink.topic_partition import TopicPartitionKey

NOW_MS = 1_700_000_000_000
CONFIG = {
    "name": "users",
    "bootstrap.servers": "broker:9092",
    "topics": "users",
    "tasks.max": "2",
    "s3.bucket.name": "log",
    "listeners": "http://127.0.0.1:0",
}


def make_options(**more: str) -> SinkOptions:
    """Return a small configuration."""
    return SinkOptions.parse({**CONFIG, **more})


def partition(number: int, **more: Any) -> PartitionStatus:
    """Return a partition of `users` that is 10 records behind."""
    known = {"next_offset": 90, "position": 95, "end_offset": 100, "oldest_record_ms": NOW_MS - 4000}
    return PartitionStatus("users", number, **{"state": RunState.RUNNING, **known, **more})


def task(number: int, state: RunState = RunState.RUNNING, **more: Any) -> TaskStatus:
    """Return a task that has just reported."""
    return TaskStatus(number, state, **{"reported_ms": NOW_MS, "partitions": (partition(number),), **more})


def worker(slot: int = 0, *tasks: TaskStatus, **more: Any) -> WorkerStatus:
    """Return a worker with two tasks, unless others are given."""
    known = {"worker_id": f"host{slot}:8083", "reported_ms": NOW_MS, "version": "1", "orders_version": 1}
    return WorkerStatus(slot=slot, tasks=tasks or (task(0), task(1)), **{**known, **more})


class FakeService:
    """See `keyfold_sink.control.SinkControl`. `calls` are the requested changes; `failure` is raised by each change."""

    def __init__(self, options: SinkOptions | None = None, *workers: WorkerStatus) -> None:
        self.options = options or make_options()
        self.worker_id = "host0:8083"
        self.calls: list[object] = []
        self.failure: Exception | None = None
        self.alive = True
        self.unready = ""
        self.state = RunState.RUNNING
        self.ends: dict[TopicPartitionKey, int] = {("users", 0): 90, ("users", 1): 90}
        self._workers = workers or (worker(),)

    def cluster_id(self) -> str:
        return "I4ZmrWqfT2e-upky_4fdPA"

    def target(self) -> RunState:
        return self.state

    def workers(self) -> Sequence[WorkerStatus]:
        self._fail()
        if self.state is RunState.STOPPED:
            return [replace(one, tasks=()) for one in self._workers]
        return self._workers

    def is_alive(self) -> bool:
        return self.alive

    def not_ready(self) -> str:
        return self.unready

    def pause(self) -> None:
        self._called("pause")
        self.state = RunState.PAUSED

    def resume(self) -> None:
        self._called("resume")
        self.state = RunState.RUNNING

    def stop(self) -> None:
        self._called("stop")
        self.state = RunState.STOPPED

    def restart(self, *, include_tasks: bool, only_failed: bool) -> None:
        self._called(("restart", include_tasks, only_failed))

    def restart_task(self, task_id: int) -> None:
        self._called(("restart task", task_id))
        ids = {one.slot * self.options.tasks_max + two.number for one in self._workers for two in one.tasks}
        if task_id not in ids:
            raise NoSuchTask(f"no worker has a task {task_id}")

    def flush(self) -> None:
        self._called("flush")

    def set_log_level(self, logger: str, level: str) -> None:
        self._called(("level", logger, level))

    def topics(self) -> Sequence[str]:
        self._fail()
        return ["orders", "users"]

    def offsets(self) -> Mapping[TopicPartitionKey, int]:
        self._fail()
        return self.ends

    def alter_offsets(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        self._called(("alter", dict(offsets)))
        if self.state is not RunState.STOPPED:
            raise NotStopped("it runs")
        for key, offset in offsets.items():
            if offset < self.ends.get(key, 2**63):
                raise OffsetRefused(f"{key[0]}-{key[1]}: {offset} is below the log's end")
        self.ends.update(offsets)

    def _called(self, what: object) -> None:
        self._fail()
        self.calls.append(what)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class FakeDefinitions:
    """Two definitions of keys in Connect's form."""

    def config_keys(self) -> list[dict[str, Any]]:
        return [config_key("name", required=True), config_key("rest.token", type="PASSWORD")]

    def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        values = []
        for key in self.config_keys():
            value = config.get(key["name"])
            wrong = ["is missing"] if key["required"] and value is None else []
            values.append({"definition": key, "value": config_value(key["name"], value, wrong)})
        errors = sum(bool(one["value"]["errors"]) for one in values)
        return {"name": "keyfold", "error_count": errors, "groups": ["Common"], "configs": values}


def config_key(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STRING",
        "required": False,
        "default_value": None,
        "importance": "HIGH",
        "documentation": "What it does.",
        "group": "Common",
        "width": "MEDIUM",
        "display_name": name,
        "dependents": [],
        "order": 1,
        **more,
    }


def config_value(name: str, value: str | None, wrong: list[str]) -> dict[str, Any]:
    return {"name": name, "value": value, "recommended_values": [], "errors": wrong, "visible": True}


METRICS = b"up 1\n"


def metrics(_accept: str = "") -> tuple[bytes, str]:
    return METRICS, "text/plain; version=0.0.4; charset=utf-8"


def make_backend(service: FakeService) -> Backend:
    """Return a backend over a service."""
    return Backend(service=service, definitions=FakeDefinitions(), metrics=metrics, clock=ManualClock(NOW_MS))


@contextlib.contextmanager
def serving(
    service: FakeService, limits: ServerLimits | None = None, metrics: Metrics = metrics
) -> Iterator[HttpServer]:
    """Serve REST on real sockets, as the service's options say; by default on a free port of loopback."""
    with (
        listening(service.options.listeners, REST) as sockets,
        serve(
            service,
            sockets,
            metrics=metrics,
            definitions=FakeDefinitions(),
            clock=ManualClock(NOW_MS),
            limits=limits,
        ) as server,
    ):
        yield server
