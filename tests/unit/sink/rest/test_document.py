"""The OpenAPI document and the documentation page describe the same, complete API."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import validate
from starlette.testclient import TestClient

from keyfold.http_server.guard import OPEN_PATHS
from keyfold_sink.rest.server import make_app
from tests.support.fake_service import FakeService, make_backend
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "rest.md"


def document(token: str | None = None) -> Any:
    client = TestClient(make_app(make_backend(FakeService()), token=token), base_url="http://localhost")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return client.get("/openapi.json", headers=headers).json()


def operations(found: Any) -> list[tuple[str, str, Any]]:
    return [(path, method, one) for path, methods in found["paths"].items() for method, one in methods.items()]


def test_the_document_is_openapi() -> None:
    validate(document())
    validate(document("t0p-s3cret"))


def test_every_operation_is_described_and_named() -> None:
    found = operations(document())
    assert len(found) > 30
    names = [one["operationId"] for _, _, one in found]
    assert len(set(names)) == len(names)
    for path, method, one in found:
        assert len(one.get("description", "")) > 20, (path, method)
        for parameter in one.get("parameters", ()):
            assert parameter.get("description"), (path, method, parameter["name"])


def test_every_operation_declares_its_errors_in_the_same_shape() -> None:
    for path, method, one in operations(document()):
        responses = one["responses"]
        assert {"400", "403", "413", "500", "503"} <= responses.keys(), (path, method)
        assert "422" not in responses
        assert ("404" in responses) is ("{" in path)
        for status, response in responses.items():
            if status >= "400" and path not in OPEN_PATHS:
                assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}


def test_exactly_the_guarded_operations_declare_the_token() -> None:
    for path, _method, one in operations(document("t0p-s3cret")):
        assert ("security" in one) is (path not in OPEN_PATHS)
        assert ("401" in one["responses"]) is (path not in OPEN_PATHS)
    assert "securitySchemes" not in document()["components"]


@pytest.mark.parametrize("path", sorted(document()["paths"]))
def test_every_path_is_on_the_page(path: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    last = path.rpartition("/")[2] if "{" not in path.rpartition("/")[2] else path.rsplit("/", 2)[1]
    assert re.search(rf"/{re.escape(last)}\b", page) or path == "/"


def test_every_command_on_the_page_uses_an_existing_operation() -> None:
    paths = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + r"$") for path in document()["paths"]]
    asked = re.findall(r"\$sink(/[\w/-]*)", PAGE.read_text(encoding="utf-8"))
    assert len(asked) > 10
    assert [one for one in asked if not any(path.match(one) for path in paths)] == []
