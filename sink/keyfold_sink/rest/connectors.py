"""`/connectors`: configuration, status and control of the sink.

There is one connector, and its configuration is a file: requests that would change the configuration are refused with
the reason. Requests to pause, resume, stop, restart or flush are saved in the bucket for every worker, then answered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from keyfold.http_server import errors
from keyfold.http_server.json_body import JSON_BODY
from keyfold_sink.control import NoSuchTask
from keyfold_sink.rest import shapes, status_responses
from keyfold_sink.rest.backend import Behind, Connector
from keyfold_sink.status import WorkerStatus

router = APIRouter(prefix="/connectors", tags=["connectors"])

_WHY: Final = "a sink's configuration is the file that it was started with; change the file and restart the worker"
# Finding a suggestion for an unknown key takes about a millisecond per key.
_KEYS_MAX: Final = 5000
_TaskNumber = Annotated[int, Path(alias="task", description="The task's id, as in the status.", ge=0, le=2**31 - 1)]
# The response to a request that was saved for all workers.
_NOTED: Final[dict[str, Any]] = {
    "status_code": HTTPStatus.ACCEPTED,
    "response_class": Response,
    "responses": {202: {"description": "Saved; every worker follows within seconds."}},
}


@router.get("", response_model_exclude_none=True, operation_id="listConnectors")
def list_connectors(
    behind: Behind,
    expand: Annotated[
        Sequence[str], Query(description="`status`, `info`, or both. Other values are ignored, as in Connect.")
    ] = (),
) -> list[str] | dict[str, shapes.Expanded]:
    """List the connectors of this worker, which is always one.

    With `expand`, the response maps the connector's name to its status, its info, or both.
    """
    if not expand:
        return [behind.name]
    workers = behind.service.workers()
    return {
        behind.name: shapes.Expanded(
            status=_status(behind, workers) if "status" in expand else None,
            info=status_responses.info(behind.service.options, workers) if "info" in expand else None,
        )
    }


@router.post(
    "",
    response_model=shapes.ConnectorInfo,
    dependencies=[JSON_BODY],
    operation_id="createConnector",
    responses={
        200: {"description": "The connector runs with this configuration."},
        409: {"description": "The connector runs with other values."},
    },
)
def create_connector(behind: Behind, request: shapes.CreateConnector) -> Response:
    """Create a connector. Only the running configuration is accepted, and changes nothing.

    To create a sink, start a worker with a configuration file. The response is 200 for the running name and
    configuration, 409 for the running name with another configuration, and 405 for any other name.
    """
    config = texts(request.config)
    name = (request.name or "").strip() or config.get("name", "")
    _require_name(name, config)
    if name != behind.name:
        raise _not_here(
            "GET",
            f"Connector {name} cannot be created by REST; a worker runs one sink, and this one runs {behind.name}",
        )
    if not behind.service.options.means_the_same(config):
        raise errors.RequestRefused(HTTPStatus.CONFLICT, f"Connector {name} already exists with other values; {_WHY}")
    return _unchanged(behind)


@router.get("/{connector}", operation_id="getConnector")
def get_connector(behind: Behind, _name: Connector) -> shapes.ConnectorInfo:
    """Return the connector's configuration and the ids of its tasks."""
    return status_responses.info(behind.service.options, behind.service.workers())


@router.delete("/{connector}", status_code=204, operation_id="deleteConnector")
def delete_connector(name: Connector) -> None:
    """Delete the connector: always refused (405). Stop the connector or its workers instead."""
    raise _not_here(
        "GET", f"Connector {name} cannot be deleted by REST; use PUT /connectors/{name}/stop to stop it; {_WHY}"
    )


@router.get("/{connector}/config", operation_id="getConnectorConfig")
def get_config(behind: Behind, _name: Connector) -> dict[str, str]:
    """Return the configuration as written in its file.

    Secrets are shown as `[hidden]`; Connect shows their values. Placeholders (`${env:...}`, `${file:...}`) are shown as
    written, as in Connect.
    """
    return behind.service.options.shown()


@router.put(
    "/{connector}/config",
    response_model=shapes.ConnectorInfo,
    dependencies=[JSON_BODY],
    operation_id="putConnectorConfig",
)
def put_config(behind: Behind, name: Connector, config: shapes.Values) -> Response:
    """Set the configuration. Only the running configuration is accepted, also in the form that `GET` returns."""
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
    """Change keys of the configuration (null removes a key). Only a patch that changes nothing is accepted."""
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
    """Return the state of the connector and of every task of every worker.

    A task's id is `slot of the worker * tasks.max + number of the task`. RUNNING means that data moves. A task is
    UNASSIGNED, with the reason in its trace, if it hangs or if none of its lagging partitions has made progress for a
    minute. The connector is FAILED when every task is.
    """
    return _status(behind, behind.service.workers())


@router.get("/{connector}/tasks", operation_id="getTasks")
def get_tasks(behind: Behind, _name: Connector) -> list[shapes.TaskInfo]:
    """List the tasks of all workers with their configuration."""
    return status_responses.task_infos(behind.service.options, behind.service.workers())


@router.get("/{connector}/tasks-config", deprecated=True, operation_id="getTasksConfig")
def get_tasks_config(behind: Behind, name: Connector) -> dict[str, dict[str, str]]:
    """Return every task's configuration by `<connector>-<task>`; deprecated, as in Connect."""
    infos = status_responses.task_infos(behind.service.options, behind.service.workers())
    return {f"{name}-{task.id.task}": task.config for task in infos}


@router.get("/{connector}/tasks/{task}/status", response_model_exclude_none=True, operation_id="getTaskStatus")
def get_task_status(behind: Behind, name: Connector, task: _TaskNumber) -> shapes.TaskState:
    """Return the state of one task of any worker."""
    options = behind.service.options
    for found in status_responses.tasks(options, behind.service.workers()):
        if found.id == task:
            return status_responses.task_state(options, found)
    raise errors.not_found(f"No status found for task {name}-{task}")


@router.get("/{connector}/topics", operation_id="getTopics")
def get_topics(behind: Behind, name: Connector) -> dict[str, shapes.ConnectorTopics]:
    """List the topics that the sink reads or has logs of."""
    return {name: shapes.ConnectorTopics(topics=list(behind.service.topics()))}


@router.put("/{connector}/topics/reset", operation_id="resetTopics", **_NOTED)
def reset_topics(_behind: Behind, _name: Connector) -> Response:
    """Reset the set of active topics. Nothing changes, because the sink does not store that set."""
    return _accepted()


@router.put("/{connector}/pause", operation_id="pauseConnector", **_NOTED)
def pause(behind: Behind, _name: Connector) -> Response:
    """Pause the sink. Every task commits what it has read, stops reading, and keeps its partitions."""
    behind.service.pause()
    return _accepted()


@router.put("/{connector}/resume", operation_id="resumeConnector", **_NOTED)
def resume(behind: Behind, _name: Connector) -> Response:
    """Resume a paused or stopped sink."""
    behind.service.resume()
    return _accepted()


@router.put("/{connector}/stop", operation_id="stopConnector", **_NOTED)
def stop(behind: Behind, _name: Connector) -> Response:
    """Stop the sink. Every task commits what it has read and ends; the workers wait for `resume`."""
    behind.service.stop()
    return _accepted()


@router.post("/{connector}/flush", operation_id="flushConnector", **_NOTED)
def flush(behind: Behind, _name: Connector) -> Response:
    """Flush now: every task finishes its open segments and commits them. Connect has no such endpoint."""
    behind.service.flush()
    return _accepted()


@router.post(
    "/{connector}/restart",
    status_code=204,
    response_model=None,
    responses={
        202: {"description": "Tasks being restarted have the state RESTARTING.", "model": shapes.ConnectorStatus}
    },
    operation_id="restartConnector",
)
def restart(
    behind: Behind,
    _name: Connector,
    include_tasks: Annotated[bool, Query(alias="includeTasks", description="Restart the tasks too.")] = False,  # noqa: FBT002 - a parameter of a query
    only_failed: Annotated[bool, Query(alias="onlyFailed", description="Restart only what has failed.")] = False,  # noqa: FBT002 - a parameter of a query
) -> Response:
    """Restart the connector (KIP-745). The response is 204 without flags, and 202 with the status if a flag is set.

    As in Connect, no task is restarted without `includeTasks`. Workers and tasks then look up again what they have
    cached: the store's credentials, the topics and their settings.
    """
    before = _status(behind, behind.service.workers()) if include_tasks or only_failed else None
    behind.service.restart(include_tasks=include_tasks, only_failed=only_failed)
    if before is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    plan = status_responses.restarting(before, include_tasks=include_tasks, only_failed=only_failed)
    return JSONResponse(plan.model_dump(mode="json", exclude_none=True), HTTPStatus.ACCEPTED)


@router.post("/{connector}/tasks/{task}/restart", status_code=204, operation_id="restartTask")
def restart_task(behind: Behind, name: Connector, task: _TaskNumber) -> None:
    """Restart one task of any worker."""
    try:
        behind.service.restart_task(task)
    except NoSuchTask as error:
        raise errors.not_found(f"Task {name}-{task} not found; {error}") from error


@router.get("/{connector}/partitions", operation_id="getPartitions")
def get_partitions(
    behind: Behind,
    _name: Connector,
    unassigned: Annotated[  # noqa: FBT002 - a parameter of a query
        bool, Query(description="Also list partitions that have a log and no task. This reads every manifest.")
    ] = False,
) -> shapes.Partitions:
    """Return each partition's durable, read and end offsets, and the age of its oldest record that is not durable."""
    service = behind.service
    ends = service.offsets() if unassigned else None
    rows = status_responses.partitions(service.options, service.workers(), behind.clock.now_ms(), ends)
    return shapes.Partitions(partitions=rows)


def _status(behind: Behind, workers: Sequence[WorkerStatus]) -> shapes.ConnectorStatus:
    service = behind.service
    return status_responses.status(service.options, service.target(), workers, service.worker_id)


def _accepted() -> Response:
    return Response(status_code=HTTPStatus.ACCEPTED)


def _unchanged(behind: Behind) -> Response:
    found = status_responses.info(behind.service.options, behind.service.workers())
    location = "/connectors/" + quote(behind.name, safe="")
    return JSONResponse(found.model_dump(mode="json"), HTTPStatus.OK, {"Location": location})


def _not_here(allowed: str, message: str) -> errors.RequestRefused:
    return errors.RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": allowed})


def _require_name(name: str, config: dict[str, str]) -> None:
    """Require that the configuration's name, if any, is the one in the URL, and set it otherwise; as in Connect."""
    if config.setdefault("name", name) != name:
        raise errors.bad_request(
            f"Connector name configuration ({config['name']}) doesn't match connector name in the URL ({name})"
        )


def texts(config: shapes.Values) -> dict[str, str]:
    """Return all values as strings; numbers and booleans become their JSON."""
    if len(config) > _KEYS_MAX:
        raise errors.bad_request(f"the configuration has more than {_KEYS_MAX} keys")
    found = {}
    for key, value in config.items():
        if value is None:
            raise errors.bad_request(f"the value of `{key}` must be a string")
        found[key] = value if isinstance(value, str) else json.dumps(value)
    return found
