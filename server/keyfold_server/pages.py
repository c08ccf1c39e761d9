"""Read-only pages for people. They have no script, and ask no other host for anything.

    /                                          topics
    /ui/topics/{topic}                         a map of its partitions, and its cleaning passes
    /ui/topics/{topic}/partitions/{partition}  a partition's segments
    /ui/topics/{topic}/key?key=                every record of a key
    /ui/topics/{topic}/records?offset=         records from an offset on
    /ui/sinks                                  how far the sinks are behind Kafka

The templates escape all that is put into them (Jinja2's autoescape); only the drawings of `keyfold.cli.log_map` come as
HTML, and escape for themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, unquote

import structlog
from fastapi import APIRouter, Query, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from keyfold.cli import log_map
from keyfold.cli.cat import exact_keys
from keyfold.cli.log_map import MappedLog
from keyfold.cli.map import mapped
from keyfold.cli.typed import Printer
from keyfold.errors import AccessDenied, KeyfoldError, LogNotFound, ObjectNotFound, TopicNotFound
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.format import FORMAT_NAMES
from keyfold.http_server.errors import LOGGER
from keyfold.log import catalog
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.key_directory import RecordsTooLarge
from keyfold.read.latest import count_superseded
from keyfold.read.log import Log
from keyfold.read.lookup import Lookup
from keyfold.runtime.clock import Clock
from keyfold.runtime.text import time_text
from keyfold.store.documents import DOCUMENT_BYTES_MAX, decode_document
from keyfold_server.figures import PartitionFigures, ReportedWorker, pass_rows, sink_rows, topic_rows, worker_text
from keyfold_server.keys import ANSWER_BYTES_MAX, Behind, Partition, ServerBackend

F = TypeVar("F", bound=Callable[..., Response])
T = TypeVar("T")

router = APIRouter(include_in_schema=False)

PARTITIONS_A_PAGE: Final = 100
RECORDS_A_PAGE: Final = 50
HISTORY_A_PAGE: Final = 200
_BARS: Final = 20_000
_BARS_OF_ONE: Final = 300
READERS: Final = 8
"""Manifests that one page reads at the same time."""
_VALUE_CHARACTERS: Final = 1000
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

_templates: Final = Environment(
    loader=PackageLoader("keyfold_server"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_templates.globals |= {"css": Markup(log_map.CSS), "legend": Markup(log_map.LEGEND), "formats": FORMAT_NAMES}  # noqa: S704 - constants of ours
_templates.filters["segment"] = lambda text: quote(text, safe="")

Format = Annotated[str, Query(alias="format", pattern="^(|" + "|".join(FORMAT_NAMES) + ")$")]


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record for a table: all texts, and its key as the form for a key takes it."""

    partition: int
    offset: str
    time: str
    key: str
    value: str
    is_tombstone: bool
    headers: str


def _page(name: str, status: int = HTTPStatus.OK, **values: object) -> Response:
    text = _templates.get_template(name).render(values)
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return Response(text, status, media_type="text/html; charset=utf-8", headers=headers)


def _with_error_page(handler: F) -> F:
    """Answer an error as a page."""

    @wraps(handler)
    def answered(*arguments: Any, **named: Any) -> Response:
        try:
            return handler(*arguments, **named)
        except (TopicNotFound, LogNotFound) as error:
            return _page("error.html", HTTPStatus.NOT_FOUND, title="Not found", message=str(error))
        except KeyfoldError as error:
            structlog.get_logger(LOGGER).warning("page failed", page=handler.__name__, error=error)
            status = HTTPStatus.SERVICE_UNAVAILABLE if error.retriable else HTTPStatus.INTERNAL_SERVER_ERROR
            return _page("error.html", status, title="This page cannot be shown", message=str(error))

    return answered  # type: ignore[return-value]  # `wraps` keeps the signature, which FastAPI reads


@router.get("/")
@_with_error_page
def topics(behind: Behind, request: Request, *, exact: bool = False) -> Response:
    """Show the topics. `exact` counts superseded records, which reads the indexes of all logs."""
    lookups = behind.lookups
    now_ms = _clock(request).now_ms()
    places = list(catalog.places(lookups.store, lookups.topics_dir))
    rows = list(topic_rows(_read_logs(behind, places, PartitionFigures.of, is_exact=exact), now_ms))
    url = f"{lookups.store.url}/{lookups.topics_dir}".rstrip("/")
    return _page("topics.html", title=url, rows=rows, exact=exact, now=time_text(now_ms))


@router.get("/ui/topics/{topic}")
@_with_error_page
def topic(
    behind: Behind, request: Request, topic: str, page: Annotated[int, Query(ge=1)] = 1, *, exact: bool = False
) -> Response:
    """Show a topic's map. `exact` counts superseded records, which reads the indexes of these partitions."""
    name, now_ms = unquote(topic), _clock(request).now_ms()
    log = behind.lookups.log(name)
    places = [log.place(number) for number in log.partitions()]
    pages = -(-len(places) // PARTITIONS_A_PAGE)
    first = (min(page, pages) - 1) * PARTITIONS_A_PAGE
    logs = list(_read_logs(behind, places[first : first + PARTITIONS_A_PAGE], lambda log: log, is_exact=exact))
    bars = max(1, min(_BARS_OF_ONE, _BARS // len(logs)))
    strips = [_strip(each, now_ms, bars) for each in logs]
    passes = pass_rows(each.manifest for each in logs if each.manifest is not None)
    return _page(
        "topic.html", title=name, topic=name, strips=strips, passes=passes, page=min(page, pages), pages=pages,
        partitions=len(places), exact=exact, now=time_text(now_ms),
    )  # fmt: skip


def _strip(log: MappedLog, now_ms: int, bars: int) -> dict[str, object]:
    if log.manifest is None:
        return {"partition": log.place.partition, "error": log.error}
    return {
        "partition": log.place.partition,
        "error": "",
        "drawing": Markup(log_map.strip(log, now_ms, bars)),  # noqa: S704 - log_map escapes
        "about": log_map.summary(log.manifest, log.garbage),
    }


@router.get("/ui/topics/{topic}/partitions/{partition}")
@_with_error_page
def partition(behind: Behind, request: Request, topic: str, partition: int, *, exact: bool = False) -> Response:
    """Show a partition's segments. `exact` counts superseded records, which reads the indexes."""
    name, now_ms = unquote(topic), _clock(request).now_ms()
    log = behind.lookups.log(name)
    place, garbage = log.place(partition), None
    if exact:
        manifest, garbage = count_superseded(log.store, place, lambda: log.manifest(partition))
    else:
        manifest = log.manifest(partition)
    drawn = MappedLog(place, manifest, garbage=garbage)
    return _page(
        "partition.html", title=str(place), topic=name, partition=partition, exact=exact,
        drawing=Markup(log_map.strip(drawn, now_ms)), about=log_map.summary(manifest, garbage),  # noqa: S704 - escaped
        facts=Markup(log_map.facts(manifest)), table=Markup(log_map.segment_table(drawn)),  # noqa: S704 - escaped
        next_offset=manifest.next_offset, now=time_text(now_ms),
    )  # fmt: skip


@router.get("/ui/topics/{topic}/key")
@_with_error_page
def key(behind: Behind, topic: str, key: str = "", partition: Partition = None, value_format: Format = "") -> Response:
    """Show every record of a key that the log still has."""
    name, keys = unquote(topic), sorted(exact_keys(key))
    limit = HISTORY_A_PAGE
    while True:  # large records are shown in smaller numbers
        try:
            found, ends = behind.lookups.ask(name, partial(_history, keys, partition, limit + 1))
            break
        except RecordsTooLarge:
            limit //= 2
    rows = list(_rows(behind, name, found[-max(1, limit) :], value_format))
    return _page(
        "key.html", title=f"{key} in {name}", topic=name, key=key, rows=rows, has_older=len(found) > len(rows),
        ends=sorted(ends.items()), value_format=value_format, partition=partition,
    )  # fmt: skip


def _history(
    keys: Sequence[bytes], partition: int | None, limit: int, lookup: Lookup
) -> tuple[list[tuple[int, Record]], dict[int, int]]:
    found = [each for key in keys for each in lookup.history(key, partition, limit=limit, max_bytes=ANSWER_BYTES_MAX)]
    return found, lookup.next_offsets


@router.get("/ui/topics/{topic}/records")
@_with_error_page
def records(
    behind: Behind,
    topic: str,
    partition: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    offset: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
    value_format: Format = "",
) -> Response:
    """Show records from an offset on."""
    name = unquote(topic)
    log = behind.lookups.log(name)
    manifest = log.manifest(partition)
    start = max(offset, manifest.log_start_offset)
    found: list[Record] = []
    if start < manifest.next_offset:
        size_bytes = 0
        for record in islice(log.read(partition, from_offset=start), RECORDS_A_PAGE):
            found.append(record)
            size_bytes += len(record.value or b"")
            if size_bytes > ANSWER_BYTES_MAX:
                break
    rows = list(_rows(behind, name, [(partition, record) for record in found], value_format))
    after = found[-1].offset + 1 if found and found[-1].offset + 1 < manifest.next_offset else None
    return _page(
        "records.html", title=f"{name}-{partition} from offset {offset:,}", topic=name, partition=partition,
        offset=offset, rows=rows, after=after, manifest=manifest, value_format=value_format,
    )  # fmt: skip


@router.get("/ui/sinks")
@_with_error_page
def sinks(behind: Behind, request: Request) -> Response:
    """Show how far the sinks are behind Kafka, and what is not durable yet."""
    now_ms = _clock(request).now_ms()
    shown = [
        {"name": name, "workers": worker_text(workers, now_ms), "rows": sink_rows(workers, now_ms), "errors": errors}
        for name, workers, errors in _sinks(behind)
    ]
    return _page("sinks.html", title="Sinks", sinks=shown, now=time_text(now_ms))


def _sinks(behind: ServerBackend) -> Iterator[tuple[str, list[ReportedWorker], list[str]]]:
    """Yield each sink with the status of its workers, and what could not be read."""
    store, head = behind.lookups.store, behind.lookups.topics_dir
    prefix = f"{head}/_sinks/" if head else "_sinks/"
    for folder in sorted(store.list_folders(prefix)):
        workers: list[ReportedWorker] = []
        errors: list[str] = []
        for found in store.list(f"{prefix}{folder}/workers/"):
            try:
                workers.append(decode_document(ReportedWorker, store.get(found.key, DOCUMENT_BYTES_MAX).data))
            except ObjectNotFound:
                continue  # the worker has just left
            except (ValueError, AccessDenied) as error:
                errors.append(f"{found.key}: {error}")
        yield unquote(folder), workers, errors


def _clock(request: Request) -> Clock:
    found: Clock = request.app.state.clock
    return found


def _read_logs(
    behind: ServerBackend, places: Sequence[Place], keep: Callable[[MappedLog], T], *, is_exact: bool
) -> Iterator[T]:
    """Yield what is to be kept of each partition."""
    logs: dict[str, Log] = {name: behind.lookups.log(name) for name in {place.topic for place in places}}
    with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
        yield from pool.map(lambda place: keep(mapped(logs[place.topic], place, is_exact=is_exact)), places)


def _rows(
    behind: ServerBackend, topic: str, found: Sequence[tuple[int, Record]], value_format: str
) -> Iterator[RecordRow]:
    printer, plain = behind.printer(topic, None, value_format or None), behind.printer(topic, "bytes", "bytes")
    for number, record in found:
        yield _row(number, record, printer, plain)


def _row(number: int, record: Record, printer: Printer, plain: Printer) -> RecordRow:
    note = ""
    try:
        row = json.loads(printer.json(number, record))
    except RecordFormatMismatch as error:
        row, note = json.loads(plain.json(number, record)), f" [{error}]"
    return RecordRow(
        number,
        f"{record.offset:,}",
        time_text(record.timestamp),
        _shown(row["key"]),
        _shown(row["value"]) + note,
        record.is_tombstone,
        ", ".join(f"{name}={_shown(value)}" for name, value in row["headers"]),
    )


def _shown(value: object) -> str:
    if value is None:
        return "(null)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"
