"""`/connectors`: what the sink is, how it does, and what it shall do.

There is one connector, and its configuration is a file: what would change it is refused with the reason. Requests to
pause, resume, stop, restart or flush are written down for every worker and then answered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from keyfold_sink.rest import errors, shapes, views
from keyfold_sink.rest.backend import JSON_BODY, Behind, Connector
from keyfold_sink.service import NoSuchTask
from keyfold_sink.status import WorkerStatus

router = APIRouter(prefix="/connectors", tags=["connectors"])

_WHY: Final = "the configuration of a sink is the file that it was started with: change the file and start it again"
# Looking for what a wrong key may mean takes a millisecond each.
_KEYS_MAX: Final = 5000
_TaskNumber = Annotated[int, Path(alias="task", description="The task's id, as in the status.", ge=0, le=2**31 - 1)]
# How it is answered that an order is written down.
_NOTED: Final[dict[str, Any]] = {
    "status_code": HTTPStatus.ACCEPTED,
    "response_class": Response,
    "responses": {202: {"description": "Written down; every worker follows within seconds."}},
}


@router.get("", response_model_exclude_none=True, operation_id="listConnectors")
def list_connectors(
    behind: Behind,
    expand: Annotated[
        Sequence[str], Query(description="`status`, `info`, or both; others are ignored, as Connect does.")
    ] = (),
) -> list[str] | dict[str, shapes.Expanded]:
    """The connectors of this worker: there is one.

    With `expand` a map of name to what was asked for.
    """
    if not expand:
        return [behind.name]
    workers = behind.service.workers()
    return {
        behind.name: shapes.Expanded(
            status=_status(behind, workers) if "status" in expand else None,
            info=views.info(behind.service.options, workers) if "info" in expand else None,
        )
    }


@router.post(
    "",
    response_model=shapes.ConnectorInfo,
    dependencies=[JSON_BODY],
    operation_id="createConnector",
    responses={200: {"description": "This is what runs."}, 409: {"description": "It runs with other values."}},
)
def create_connector(behind: Behind, request: shapes.CreateConnector) -> Response:
    """Create a connector: refused, but for what is running already.

    A sink is made by starting a worker with a configuration file. The same name with the same configuration is answered
    as done; with another configuration 409 (it exists), and any other name 405.
    """
    config = texts(request.config)
    name = (request.name or "").strip() or config.get("name", "")
    _require_name(name, config)
    if name != behind.name:
        raise _not_here(
            "GET", f"Connector {name} cannot be created here: a worker runs one sink, this one {behind.name}"
        )
    if not behind.service.options.means_the_same(config):
        raise errors.Refused(HTTPStatus.CONFLICT, f"Connector {name} already exists, with other values; {_WHY}")
    return _unchanged(behind)


@router.get("/{connector}", operation_id="getConnector")
def get_connector(behind: Behind, _name: Connector) -> shapes.ConnectorInfo:
    """The connector: its configuration and the ids of its tasks."""
    return views.info(behind.service.options, behind.service.workers())


@router.delete("/{connector}", status_code=204, operation_id="deleteConnector")
def delete_connector(name: Connector) -> None:
    """Delete the connector: refused. Stop it, or end its workers."""
    raise _not_here("GET", f"Connector {name} cannot be deleted by REST; PUT /connectors/{name}/stop stops it, {_WHY}")


@router.get("/{connector}/config", operation_id="getConnectorConfig")
def get_config(behind: Behind, _name: Connector) -> dict[str, str]:
    """The configuration as it was given.

    Secrets are `[hidden]`, which Connect shows; placeholders (`${env:...}`, `${file:...}`) stay as written, as there.
    """
    return behind.service.options.shown()


@router.put(
    "/{connector}/config",
    response_model=shapes.ConnectorInfo,
    dependencies=[JSON_BODY],
    operation_id="putConnectorConfig",
)
def put_config(behind: Behind, name: Connector, config: shapes.Values) -> Response:
    """Set the configuration: refused, but for what is running already (also as `GET` shows it)."""
    values = texts(config)
    _require_name(name, values)
    if not behind.service.options.means_the_same(values):
        raise _not_here("GET", f"Connector {name} cannot be configured by REST; {_WHY}")
    return _unchanged(behind)


@router.patch(
    "/{connector}/config",
    response_model=shapes.ConnectorInfo,
    dependencies=[JSON_BODY],
    operation_id="patchConnectorConfig",
)
def patch_config(behind: Behind, name: Connector, config: shapes.Values) -> Response:
    """Change keys of the configuration (null removes one): refused, but for what changes nothing."""
    removed = {key for key, value in config.items() if value is None}
    changed = texts({key: value for key, value in config.items() if value is not None})
    values = {key: value for key, value in behind.service.options.shown().items() if key not in removed}
    values.update(changed)
    _require_name(name, values)
    if not behind.service.options.means_the_same(values):
        raise _not_here("GET", f"Connector {name} cannot be configured by REST; {_WHY}")
    return _unchanged(behind)


@router.get("/{connector}/status", response_model_exclude_none=True, operation_id="getConnectorStatus")
def get_status(behind: Behind, _name: Connector) -> shapes.ConnectorStatus:
    """State of the connector and of every task, over all workers.

    Ids are `slot of the worker * tasks.max + number of the task`. RUNNING means that data moves: a task that hangs, or
    all of whose partitions with lag have stood still for a minute, is UNASSIGNED, and its trace says why. The connector
    is FAILED when every task is.
    """
    return _status(behind, behind.service.workers())


@router.get("/{connector}/tasks", operation_id="getTasks")
def get_tasks(behind: Behind, _name: Connector) -> list[shapes.TaskInfo]:
    """Every task, over all workers, with its configuration."""
    return views.task_infos(behind.service.options, behind.service.workers())


@router.get("/{connector}/tasks-config", deprecated=True, operation_id="getTasksConfig")
def get_tasks_config(behind: Behind, name: Connector) -> dict[str, dict[str, str]]:
    """Every task's configuration by `<connector>-<task>`; deprecated in Connect, too."""
    infos = views.task_infos(behind.service.options, behind.service.workers())
    return {f"{name}-{task.id.task}": task.config for task in infos}


@router.get("/{connector}/tasks/{task}/status", response_model_exclude_none=True, operation_id="getTaskStatus")
def get_task_status(behind: Behind, name: Connector, task: _TaskNumber) -> shapes.TaskState:
    """State of one task, whichever worker has it."""
    options = behind.service.options
    for found in views.tasks(options, behind.service.workers()):
        if found.id == task:
            return views.task_state(options, found)
    raise errors.not_found(f"No status found for task {name}-{task}")


@router.get("/{connector}/topics", operation_id="getTopics")
def get_topics(behind: Behind, name: Connector) -> dict[str, shapes.Topics]:
    """Topics that the sink has a log of, or reads."""
    return {name: shapes.Topics(topics=list(behind.service.topics()))}


@router.put("/{connector}/topics/reset", operation_id="resetTopics", **_NOTED)
def reset_topics(_behind: Behind, _name: Connector) -> Response:
    """Empty the set of topics: nothing to do, for the set is not kept but looked up each time."""
    return _accepted()


@router.put("/{connector}/pause", operation_id="pauseConnector", **_NOTED)
def pause(behind: Behind, _name: Connector) -> Response:
    """Pause: every task commits what it has read and stops reading; it keeps its partitions."""
    behind.service.pause()
    return _accepted()


@router.put("/{connector}/resume", operation_id="resumeConnector", **_NOTED)
def resume(behind: Behind, _name: Connector) -> Response:
    """Resume what is paused or stopped."""
    behind.service.resume()
    return _accepted()


@router.put("/{connector}/stop", operation_id="stopConnector", **_NOTED)
def stop(behind: Behind, _name: Connector) -> Response:
    """Stop: every task commits what it has read and ends; workers stay and wait for `resume`."""
    behind.service.stop()
    return _accepted()


@router.post("/{connector}/flush", operation_id="flushConnector", **_NOTED)
def flush(behind: Behind, _name: Connector) -> Response:
    """Flush now: every task finishes its segments and commits them. Connect has nothing like it."""
    behind.service.flush()
    return _accepted()


@router.post(
    "/{connector}/restart",
    status_code=204,
    response_model=None,
    responses={202: {"description": "RESTARTING is who is started anew.", "model": shapes.ConnectorStatus}},
    operation_id="restartConnector",
)
def restart(
    behind: Behind,
    _name: Connector,
    include_tasks: Annotated[bool, Query(alias="includeTasks", description="Start tasks anew, too.")] = False,  # noqa: FBT002
    only_failed: Annotated[bool, Query(alias="onlyFailed", description="Only what has failed.")] = False,  # noqa: FBT002
) -> Response:
    """Restart (KIP-745). Without a flag 204, with one 202 and the status.

    As in Connect no task is touched without `includeTasks`; what they have looked up (credentials of the store, topics
    and their settings) is looked up anew.
    """
    before = _status(behind, behind.service.workers()) if include_tasks or only_failed else None
    behind.service.restart(include_tasks=include_tasks, only_failed=only_failed)
    if before is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    plan = views.restarting(before, include_tasks=include_tasks, only_failed=only_failed)
    return JSONResponse(plan.model_dump(mode="json", exclude_none=True), HTTPStatus.ACCEPTED)


@router.post("/{connector}/tasks/{task}/restart", status_code=204, operation_id="restartTask")
def restart_task(behind: Behind, name: Connector, task: _TaskNumber) -> None:
    """Start one task anew, whichever worker has it."""
    try:
        behind.service.restart_task(task)
    except NoSuchTask as error:
        raise errors.not_found(f"Task {name}-{task} not found; {error}") from error


@router.get("/{connector}/partitions", operation_id="getPartitions")
def get_partitions(
    behind: Behind,
    _name: Connector,
    unassigned: Annotated[  # noqa: FBT002
        bool, Query(description="Also partitions with a log that no task has; reads every manifest.")
    ] = False,
) -> shapes.Partitions:
    """How far each partition is: durable, read, available; how old the oldest record is that is not durable yet."""
    service = behind.service
    ends = service.offsets() if unassigned else None
    rows = views.partitions(service.options, service.workers(), behind.clock.now_ms(), ends)
    return shapes.Partitions(partitions=rows)


def _status(behind: Behind, workers: Sequence[WorkerStatus]) -> shapes.ConnectorStatus:
    service = behind.service
    return views.status(service.options, service.target(), workers, service.worker_id)


def _accepted() -> Response:
    return Response(status_code=HTTPStatus.ACCEPTED)


def _unchanged(behind: Behind) -> Response:
    found = views.info(behind.service.options, behind.service.workers())
    location = "/connectors/" + quote(behind.name, safe="")
    return JSONResponse(found.model_dump(mode="json"), HTTPStatus.OK, {"Location": location})


def _not_here(allowed: str, message: str) -> errors.Refused:
    return errors.Refused(HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": allowed})


def _require_name(name: str, config: dict[str, str]) -> None:
    """As Connect: the name inside must be the one outside, and is filled in."""
    if config.setdefault("name", name) != name:
        raise errors.bad_request(
            f"Connector name configuration ({config['name']}) doesn't match connector name in the URL ({name})"
        )


def texts(config: shapes.Values) -> dict[str, str]:
    """All values travel as strings; numbers and booleans are their JSON."""
    if len(config) > _KEYS_MAX:
        raise errors.bad_request(f"a configuration of more than {_KEYS_MAX} keys is not looked at")
    found = {}
    for key, value in config.items():
        if value is None:
            raise errors.bad_request(f"the value of `{key}` must be a string")
        found[key] = value if isinstance(value, str) else json.dumps(value)
    return found
