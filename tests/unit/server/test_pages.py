"""The pages: everything is shown, nothing that is shown is taken for HTML, and errors are pages too."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog, record, records
from tests.support.served import served

HOSTILE = "<script>alert(1)</script>\"'&"
VOID = frozenset({"meta", "link", "input", "br", "rect"})


class Balanced(HTMLParser):
    """Collects the elements of a page, and requires that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    made = MadeLog(store=found, place=Place("topics", "users", 0))
    made.append(records("a=1 b=2 a=3"))
    made.append([record(3, HOSTILE, HOSTILE), record(4, "b", None), Record(5, 1, CREATE_TIME, b"\xff", b"\xfe")])
    MadeLog(store=found, place=Place("topics", "users", 1)).append(records("c=1"))
    MadeLog(store=found, place=Place("topics", "events", 0)).append(records("k=1"))
    status = {
        "worker_id": HOSTILE,
        "reported_ms": 5,
        "later_field": 1,
        "tasks": [
            {
                "number": 0,
                "state": "RUNNING",
                "partitions": [
                    {"topic": "users", "partition": 1, "state": "RUNNING", "next_offset": 1, "end_offset": 1},
                    {"topic": "users", "partition": 0, "state": "FAILED", "next_offset": 6, "end_offset": 46,
                     "error": HOSTILE},
                ],
            }
        ],
    }  # fmt: skip
    found.put("topics/_sinks/my%20sink/workers/w.json", json.dumps(status).encode(), Create())
    found.put("topics/_sinks/my%20sink/workers/bad.json", b"{", Create())
    return found


PAGES = (
    "/",
    "/?exact=true",
    "/ui/topics/users?exact=true",
    "/ui/topics/users",
    "/ui/topics/users/partitions/0",
    "/ui/topics/users/partitions/0?exact=true",
    "/ui/topics/users/key?key=a",
    "/ui/topics/users/key?key=nosuch",
    "/ui/topics/users/records?partition=0&offset=0",
    "/ui/topics/users/records?partition=0&offset=99",
    "/ui/sinks",
    "/ui/topics/nosuch",
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_asks_no_other_host(store: MemoryStore, path: str) -> None:
    answer = served(store).get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = Balanced(answer.text)
    assert not [tag for tag, _ in page.seen if tag in {"script", "iframe", "img", "object"}]
    links = [found for _, each in page.seen for name in ("href", "src", "action") if (found := each.get(name))]
    assert all(link.startswith(("/", "?", "#", "data:,")) for link in links)
    assert [tag for tag, _ in page.seen].count("h1") == 1
    labels = sum(tag == "label" for tag, _ in page.seen)
    fields = sum(tag in {"input", "select"} and each.get("type") != "hidden" for tag, each in page.seen)
    assert labels == fields


def test_every_link_leads_to_a_page(store: MemoryStore) -> None:
    client, due, seen = served(store), ["/"], set[str]()
    while due:
        path = due.pop()
        answer = client.get(path)
        assert answer.status_code == 200, path
        for tag, each in Balanced(answer.text).seen:
            link = each.get("href") or ""
            target = path.partition("?")[0] + link if link.startswith("?") else link
            if tag == "a" and link.startswith(("/", "?")) and target not in seen:
                seen.add(target)
                due.append(target)
    assert len(seen) >= 10


def test_the_topics_have_their_figures(store: MemoryStore) -> None:
    text = served(store).get("/").text
    assert re.search(r'<a href="/ui/topics/events">events</a>', text)
    row = text[text.index('"/ui/topics/users"') :].partition("</tr>")[0]
    assert re.findall(r"<td>([^<]*)</td>", row)[:3] == ["2", "7", "3"]
    exact = served(store).get("/?exact=true").text
    row = exact[exact.index('"/ui/topics/users"') :].partition("</tr>")[0]
    assert re.findall(r"<td>([^<]*)</td>", row)[5] == "29%"  # two of seven records
    assert "2 superseded records" in served(store).get("/ui/topics/users?exact=true").text


def test_a_key_has_its_history_and_markup_is_text(store: MemoryStore) -> None:
    client = served(store)
    text = client.get("/ui/topics/users/key?key=b").text
    assert [*re.findall(r'<th scope="row">(\d+)</th>', text)] == ["1", "4"]
    assert "<i>deleted</i>" in text
    hostile = client.get("/ui/topics/users/key", params={"key": HOSTILE}).text
    assert "<script" not in hostile
    assert hostile.count("&lt;script&gt;") >= 4  # title, heading, field, key and value
    assert 'scope="row">5<' in client.get("/ui/topics/users/key?key=0xff").text


def test_records_begin_at_the_offset_and_go_on(store: MemoryStore) -> None:
    made = MadeLog(store=store, place=Place("topics", "many", 0))
    made.append([record(n, f"k{n}", f"v{n}") for n in range(120)])
    client = served(store)
    text = client.get("/ui/topics/many/records?offset=10").text
    offsets = re.findall(r'<th scope="row">(\d+)</th>', text)
    assert (offsets[0], offsets[-1]) == ("10", "59")
    assert "?partition=0&amp;offset=60&amp;format=" in text
    assert "More records" not in client.get("/ui/topics/many/records?offset=100").text


def test_a_value_that_is_not_of_its_format_is_shown_as_bytes(store: MemoryStore) -> None:
    text = served(store).get("/ui/topics/users/records?format=json").text
    assert "cannot be decoded" in text or "is not JSON" in text


def test_sinks_are_shown_with_the_most_lag_first(store: MemoryStore) -> None:
    text = served(store).get("/ui/sinks").text
    assert "<h2>my sink</h2>" in text
    assert text.index("40 records") < text.index("0 records<")
    assert "<script" not in text
    assert "bad.json" in text


def test_an_unknown_topic_is_a_page(store: MemoryStore) -> None:
    answer = served(store).get("/ui/topics/nosuch")
    assert (answer.status_code, 'role="alert"' in answer.text) == (404, True)
    assert served(store).get("/ui/topics/users/partitions/7").status_code == 404


def test_a_partition_that_cannot_be_read_is_named(store: MemoryStore) -> None:
    newest = max(found.key for found in store.list("topics/events/") if "manifest" in found.key)
    store.delete(newest)
    store.put(newest, b"no manifest", Create())
    client = served(store)
    assert 'class="bad"' in client.get("/").text
    assert 'class="bad"' in client.get("/ui/topics/events").text
    assert client.get("/ui/topics/events/partitions/0").status_code == 500


def test_a_thousand_partitions_are_shown_in_parts() -> None:
    store = MemoryStore()
    for number in range(1000):
        MadeLog(store=store, place=Place("topics", "wide", number)).append(records("a=1"))
    client = served(store)
    first = client.get("/ui/topics/wide").text
    assert first.count('class="row"') == 100
    assert "Page 1 of 10, 1000 partitions" in first
    assert "partition 999<" in client.get("/ui/topics/wide?page=10").text
    assert len(first) < 500_000


def test_links_from_other_sites_are_followed_and_other_requests_refused(store: MemoryStore) -> None:
    client = served(store)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    for change in ({"Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Dest": "iframe"}, {"Origin": "http://evil.example"}):
        assert client.get("/", headers=link | change).status_code == 403
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
