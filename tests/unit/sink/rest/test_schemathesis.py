"""A third-party client reads the OpenAPI document and sends requests inside and outside of it.

schemathesis makes requests, right and wrong ones, and holds each answer to the document: status, content type, shape,
no 5xx, no method that is not there, no wrong request taken, no right one refused. Seeded and bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import CHECKS
from schemathesis.schemas import BaseSchema

from keyfold_sink.rest.server import make_app
from tests.support.fake_service import FakeService, make_backend, make_options

pytest_plugins = ["schemathesis.pytest.plugin"]  # switched off in pyproject.toml for all other tests

pytestmark = pytest.mark.full  # building the requests takes seconds in each worker

HOST = {"Host": "localhost"}
TOKEN = {"Authorization": "Bearer t0p-s3cret"}
# What these accept depends on what runs, not on the shape of the request.
DEPENDS = {
    "createConnector",
    "putConnectorConfig",
    "patchConnectorConfig",
    "deleteConnector",
    "alterOffsets",
    "resetOffsets",
}
THERE = {"connector": "users", "task": 1, "plugin": "KeyfoldSink", "logger": "keyfold.fuzz"}

bounded = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def _levels_stay() -> Iterator[None]:
    known = [
        logging.getLogger(),
        *(log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)),
    ]
    levels = [log.level for log in known]
    yield
    for log, level in zip(known, levels, strict=True):
        log.setLevel(level)


def document(service: FakeService, **headers: str) -> BaseSchema:
    app = make_app(make_backend(service), token="t0p-s3cret" if headers else None)
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers={**HOST, **headers})


ANYTHING = document(FakeService())
EXISTING = document(FakeService())
GUARDED = document(FakeService(make_options(**{"rest.token": "t0p-s3cret"})), **TOKEN)


@EXISTING.hook
def map_path_parameters(context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if parameters is None else {name: THERE[name] for name in parameters}


def excluded(case: Case[Any]) -> list[Any]:
    if case.operation.definition.raw["operationId"] in DEPENDS:
        return [CHECKS.get_one("positive_data_acceptance")]
    return []


@ANYTHING.parametrize()
@bounded
def test_every_response_matches_the_document(case: Case[Any]) -> None:
    case.call_and_validate(headers=HOST, excluded_checks=excluded(case))


@EXISTING.parametrize()
@bounded
def test_every_response_about_existing_resources_matches_the_document(case: Case[Any]) -> None:
    case.call_and_validate(headers=HOST, excluded_checks=excluded(case))


@GUARDED.parametrize()
@bounded
def test_guarded_resources_are_not_shown_without_the_token(case: Case[Any]) -> None:
    case.call_and_validate(headers={**HOST, **TOKEN}, excluded_checks=excluded(case))
