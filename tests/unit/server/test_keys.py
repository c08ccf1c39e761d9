"""Answers by key over HTTP: the right record, its version, and clear refusals."""

from __future__ import annotations

import base64
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.memory import MemoryStore
from keyfold_server import app
from keyfold_server.keys import ANSWER_BYTES_MAX
from tests.support.logs import MadeLog, record, records
from tests.support.served import served

USERS = "/topics/users/keys"
JSON = {"Accept": "application/json"}


@pytest.fixture
def made() -> MadeLog:
    return MadeLog(place=Place("topics", "users", 0))


def test_a_value_is_its_bytes_with_its_place_and_version(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a=3"))
    answer = served(made.store).get(f"{USERS}/a")
    assert (answer.status_code, answer.content) == (200, b"3")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["etag"] == f'"{made.manifest.log_id}:0:2"'
    assert (answer.headers["keyfold-partition"], answer.headers["keyfold-offset"]) == ("0", "2")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_json_is_the_record_as_log_cat_has_it(made: MadeLog) -> None:
    made.append(records('a={"n":1}'))
    client = served(made.store)
    document = client.get(f"{USERS}/a", headers=JSON).json()
    assert (document["key"], document["value"], document["offset"]) == ("a", '{"n":1}', 0)
    assert client.get(f"{USERS}/a?value_format=json", headers=JSON).json()["value"] == {"n": 1}
    by_default = served(made.store, formats={"value_format": "json"})
    assert by_default.get(f"{USERS}/a", headers=JSON).json()["value"] == {"n": 1}


def test_a_client_that_has_the_record_is_told_so(made: MadeLog) -> None:
    made.append(records("a=1"))
    client = served(made.store, refresh_s=0)
    etag = client.get(f"{USERS}/a").headers["etag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}'):
        unchanged = client.get(f"{USERS}/a", headers={"If-None-Match": given})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)
    made.append([record(1, "b", "9")])
    assert client.get(f"{USERS}/a", headers={"If-None-Match": etag}).status_code == 304
    made.append([record(2, "a", "2")])
    assert client.get(f"{USERS}/a", headers={"If-None-Match": etag}).content == b"2"


def test_a_key_without_a_value_says_how_far_the_log_was_looked_at(made: MadeLog) -> None:
    made.append(records("a=1 a="))
    client = served(made.store)
    absent, deleted = client.get(f"{USERS}/x"), client.get(f"{USERS}/a")
    assert (absent.status_code, deleted.status_code) == (404, 404)
    assert absent.json()["message"] == "key `x` of `users` has no record up to offset 2 of partition 0"
    assert absent.json()["next_offsets"] == {"0": 2}
    assert deleted.json()["message"] == "key `a` of `users` was deleted at offset 1 of partition 0"


@pytest.mark.parametrize("key", [b"a/b", b"../x", b"\xff\x00\xfe", "käse".encode(), b"%41", b"a b?c#d", b" ", b"."])
def test_every_key_can_be_asked_for(made: MadeLog, key: bytes) -> None:
    keys = (key, b"A", "\ufffd".encode())
    made.append([Record(n, 1, CREATE_TIME, each, b"value-%d" % n) for n, each in enumerate(keys)])
    client = served(made.store)
    assert client.get(f"{USERS}/{quote(key, safe='').replace('.', '%2E')}").content == b"value-0"
    asked: Any = {"base64": base64.b64encode(key).decode()}
    assert client.post(USERS, json={"keys": [asked]}).json()["records"][0]["offset"] == 0


def test_history_has_every_record(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a= a=3"))
    found = served(made.store).get(f"{USERS}/a/history").json()
    assert ([each["value"] for each in found["records"]], found["has_older"]) == (["1", None, "3"], False)
    assert served(made.store).get(f"{USERS}/nosuch/history").json() == {"records": [], "has_older": False}


def test_a_history_can_be_limited(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a=3 a=4"))
    MadeLog(store=made.store, place=Place("topics", "users", 1), clock=made.clock).append(records("a=5 a=6"))
    client = served(made.store)
    for limit, values, has_older in ((1, ["4", "6"], True), (2, ["3", "4", "5", "6"], True)):
        found = client.get(f"{USERS}/a/history?limit={limit}").json()
        assert ([each["value"] for each in found["records"]], found["has_older"]) == (values, has_older)
    assert client.get(f"{USERS}/a/history?limit=3").json()["has_older"] is False
    for wrong in ("0", "10001", "x"):
        assert client.get(f"{USERS}/a/history?limit={wrong}").status_code == 400


def test_an_answer_is_bounded_but_for_one_record(made: MadeLog) -> None:
    large = "x" * (ANSWER_BYTES_MAX // 2 + 1)
    made.append([record(0, "a", large), record(1, "a", large), record(2, "b", large * 2)])
    client = served(made.store)
    answers = [
        client.get(f"{USERS}/a/history"),
        client.post(USERS, json={"keys": ["a", "b"]}),
        client.get(f"{USERS}/b"),
        client.post(USERS, json={"keys": ["b"]}),
        client.get(f"{USERS}/a/history?limit=1&partition=0"),
    ]
    assert [each.status_code for each in answers] == [413, 413, 200, 200, 200]
    assert "ask for fewer at once" in answers[0].json()["message"]
    newest = answers[4].json()
    assert ([each["offset"] for each in newest["records"]], newest["has_older"]) == ([1], True)
    assert client.get("/ui/topics/users/key?key=a").status_code == 200
    page = client.get("/ui/topics/users/records")
    assert page.text.count("<tr>") < 5
    assert "offset=2" in page.text


def test_an_asterisk_stands_for_any_record(made: MadeLog) -> None:
    made.append(records("a=1"))
    client = served(made.store)
    assert client.get(f"{USERS}/a", headers={"If-None-Match": "*"}).status_code == 304
    assert client.get(f"{USERS}/x", headers={"If-None-Match": "*"}).status_code == 404


def test_many_keys_in_one_request(made: MadeLog) -> None:
    made.append(records("a=1 b=2 c=3 b="))
    found = served(made.store).post(USERS, json={"keys": ["a", "b", "c", "nosuch", "a"]}).json()
    assert [(each["key"], each["value"]) for each in found["records"]] == [("a", "1"), ("c", "3")]
    assert found["next_offsets"] == {"0": 4}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"keys": []}, "at least 1"),
        ({"keys": ["a"] * 1001}, "at most 1000"),
        ({"keys": [{"base64": "!"}]}, "is not Base64"),
        ({"keys": [7]}, "keys.0"),
        ({}, "keys"),
    ],
)
def test_bad_requests_are_named(made: MadeLog, body: dict[str, Any], words: str) -> None:
    made.append(records("a=1"))
    answer = served(made.store).post(USERS, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_half_a_surrogate_pair_is_no_key(made: MadeLog) -> None:
    made.append(records("a=1"))
    headers = {"Content-Type": "application/json"}
    answer = served(made.store).post(USERS, content=b'{"keys": ["\\ud800"]}', headers=headers)
    assert (answer.status_code, "surrogate" in answer.json()["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/topics/nosuch/keys/a", "/topics/%FF/keys/a", "/topics/..%2Fx/keys/a"])
def test_an_unknown_topic_is_404(made: MadeLog, path: str) -> None:
    made.append(records("a=1"))
    client = served(made.store)
    answer = client.get(path)
    assert (answer.status_code, answer.json()["error_code"]) == (404, 404)
    assert "keyfold_serve_topics 0.0" in client.get("/metrics").text


def test_a_partition_can_be_named(made: MadeLog) -> None:
    made.append(records("a=1"))
    MadeLog(store=made.store, place=Place("topics", "users", 1), clock=made.clock).append(records("a=7 b=8"))
    client = served(made.store)
    assert client.get(f"{USERS}/a").status_code == 409
    assert client.get(f"{USERS}/a?partition=1").content == b"7"
    assert client.get(f"{USERS}/b").headers["keyfold-partition"] == "1"
    assert client.get(f"{USERS}/x").json()["next_offsets"] == {"0": 1, "1": 2}
    assert client.get(f"{USERS}/a?partition=9").status_code == 404
    assert client.get(f"{USERS}/a?partition=-1").status_code == 400


def test_a_value_that_is_not_of_its_format_is_422(made: MadeLog) -> None:
    made.append(records("a=1{"))
    client = served(made.store)
    answer = client.get(f"{USERS}/a?value_format=json", headers=JSON)
    assert answer.status_code == 422
    assert "users-0" in answer.json()["message"]
    assert client.get(f"{USERS}/a?value_format=json").content == b"1{"  # its bytes need no format
    assert client.get(f"{USERS}/a?value_format=xml", headers=JSON).status_code == 400


def test_a_newer_record_is_seen_after_the_refresh_time(made: MadeLog) -> None:
    made.append(records("a=1"))
    client = served(made.store, clock=made.clock, refresh_s=1.0)
    assert client.get(f"{USERS}/a").content == b"1"
    made.append([record(1, "a", "2")])
    assert client.get(f"{USERS}/a").content == b"1"
    made.clock.sleep(1.0)
    assert client.get(f"{USERS}/a").content == b"2"


def test_a_log_that_was_created_again_is_answered_from(made: MadeLog) -> None:
    made.append(records("a=1 b=2"))
    client = served(made.store, refresh_s=0)
    assert client.get(f"{USERS}/a").content == b"1"
    store = made.store
    for found in list(store.list("topics/")):
        store.delete(found.key)
    MadeLog(store=store, place=made.place, clock=made.clock, random=Random(9)).append(records("a=9"))
    assert client.get(f"{USERS}/a").content == b"9"
    assert client.get(f"{USERS}/b").status_code == 404


def test_the_token_is_required_but_for_probes_and_metrics(made: MadeLog) -> None:
    made.append(records("a=1"))
    client = served(made.store, token="s3cret")
    refused = client.get(f"{USERS}/a")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="keyfold"')
    assert client.get(f"{USERS}/a", headers={"Authorization": "Bearer s3cret"}).content == b"1"
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        assert client.get(path).status_code == 200


def test_requests_are_counted_by_route(made: MadeLog) -> None:
    made.append(records("a=1"))
    client = served(made.store)
    client.get(f"{USERS}/a")
    client.get(f"{USERS}/x")
    text = client.get("/metrics").text
    assert 'keyfold_serve_requests_total{endpoint="/topics/{topic}/keys/{key}",status="200"} 1.0' in text
    assert 'keyfold_serve_requests_total{endpoint="/topics/{topic}/keys/{key}",status="404"} 1.0' in text
    assert 'keyfold_serve_request_seconds_count{endpoint="/topics/{topic}/keys/{key}"} 2.0' in text
    assert "keyfold_serve_topics 1.0" in text


def test_refused_requests_are_counted_too(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CLIENTS_MAX", 0)
    client = served(made.store, token="s3cret")
    assert client.get(f"{USERS}/a").status_code == 401
    busy = client.get(f"{USERS}/a", headers={"Authorization": "Bearer s3cret"})
    assert (busy.status_code, busy.headers["x-content-type-options"]) == (503, "nosniff")
    text = client.get("/metrics").text
    assert 'keyfold_serve_requests_total{endpoint="other",status="401"} 1.0' in text
    assert 'keyfold_serve_requests_total{endpoint="other",status="503"} 1.0' in text


def test_topics_beyond_the_memory_are_forgotten() -> None:
    store = MemoryStore()
    for topic in ("t1", "t2", "t3"):
        MadeLog(store=store, place=Place("topics", topic, 0)).append(records("a=1 b=2"))
    client = served(store, memory_bytes=1)
    for topic in ("t1", "t2", "t3", "t1"):
        assert client.get(f"/topics/{topic}/keys/a").content == b"1"
        assert "keyfold_serve_topics 1.0" in client.get("/metrics").text
