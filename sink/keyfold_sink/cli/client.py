"""A client of a running sink's REST API (docs/rest.md). Any worker of the sink may answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import TypeAdapter, ValidationError

from keyfold.config.config_file import read_written, resolve_all
from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.listeners import is_loopback, parse_listeners
from keyfold.runtime.text import count_text
from keyfold_sink.config.option_groups import DEFAULT_LISTENER, REST
from keyfold_sink.rest import shapes
from keyfold_sink.topic_partition import TopicPartitionKey

TOKEN_VARIABLE: Final = "KEYFOLD_SINK_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 125.0  # the sink itself gives up after 120 s
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - replaced by an address that can be reached
_TEXT_MAX: Final = 200
_NEEDED_KEYS: Final = frozenset({"listeners", "rest.token", "name"})

T = TypeVar("T")


class SinkUnreachable(KeyfoldError):
    """No sink answers at the address."""


class SinkRefused(KeyfoldError):
    """The sink refused a request; `status` is the HTTP status."""

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class SinkAddress:
    """The address of a sink's REST API, its token, and the sink's name if that is known."""

    def __init__(self, url: str, token: str | None = None, name: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.name = name

    @classmethod
    def find(cls, config: Path | None, url: str | None, environ: Mapping[str, str]) -> SinkAddress:
        """Return the address that a configuration names, or `url`, or the default.

        Only `listeners`, `rest.token` and `name` of the configuration count, so that placeholders in other keys need no
        value here. Raise `ConfigError` if the configuration names no address.
        """
        token = environ.get(TOKEN_VARIABLE) or None
        if config is None:
            return cls(url or DEFAULT_LISTENER, token)
        written = read_written(config)
        wanted = {key: value for key, value in written.items() if key in _NEEDED_KEYS}
        values, mistakes = resolve_all(wanted, environ)
        if mistakes and not (url and token):
            raise mistakes[0]
        return cls(
            url or _first_listener(values.get("listeners", DEFAULT_LISTENER)),
            token or values.get("rest.token"),
            values.get("name"),
        )


def _first_listener(listeners: str) -> str:
    found = parse_listeners([each for each in listeners.split(",") if each.strip()], REST)
    fixed = [listener for listener in found if listener.port]
    if not fixed:
        raise ConfigError(
            "listeners",
            "names no port, so the address of the sink's REST API is not known",
            hint="the worker prints its address when it starts: give it with --url",
        )
    first = min(fixed, key=lambda listener: not listener.is_loopback)
    host = _ANY_ADDRESS.get(first.host, first.host)
    return f"http://[{host}]:{first.port}" if ":" in host else f"http://{host}:{first.port}"


class SinkClient:
    """Requests to one sink. Each call raises `SinkUnreachable` or `SinkRefused`."""

    def __init__(self, address: SinkAddress) -> None:
        """Make no request yet."""
        self.url = address.url
        self._name = address.name
        headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        host = urlsplit(address.url).hostname or ""
        self._http = httpx2.Client(
            base_url=address.url,
            headers=headers,
            timeout=httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S),
            trust_env=not is_loopback(host),  # no proxy reaches this machine's loopback
        )

    @classmethod
    def open(cls, config: Path | None, url: str | None) -> SinkClient:
        """Return a client of the sink that `SinkAddress.find` finds."""
        return cls(SinkAddress.find(config, url, os.environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @property
    def name(self) -> str:
        """The sink's name: the one of the configuration, otherwise what the worker runs."""
        if self._name is None:
            running = self._ask("GET", "/connectors", list[str])
            if len(running) != 1:
                raise SinkRefused(
                    f"{self.url} runs {count_text(len(running), 'connector')}; a worker of a sink runs one",
                    status=404,
                    hint="name the address of the sink's worker with --url",
                )
            self._name = running[0]
        return self._name

    def status(self) -> shapes.ConnectorStatus:
        """Return the state of the sink and of all its tasks."""
        return self._of_sink("GET", "status", shapes.ConnectorStatus)

    def partitions(self) -> list[shapes.PartitionDetails]:
        """Return all partitions of all tasks."""
        return self._of_sink("GET", "partitions", shapes.Partitions).partitions

    def offsets(self) -> shapes.ConnectorOffsets:
        """Return the end of each partition's log."""
        return self._of_sink("GET", "offsets", shapes.ConnectorOffsets)

    def alter_offsets(self, offsets: Mapping[TopicPartitionKey, int]) -> str:
        """Move the ends of logs forward, each over a recorded gap. Return the sink's answer."""
        entries = [
            {"partition": {"kafka_topic": topic, "kafka_partition": number}, "offset": {"kafka_offset": offset}}
            for (topic, number), offset in offsets.items()
        ]
        return self._of_sink("PATCH", "offsets", shapes.Message, json={"offsets": entries}).message

    def request(self, action: str) -> None:
        """Request `pause`, `resume`, `stop` or `flush`. The sink has saved the request when it answers."""
        self._send("POST" if action == "flush" else "PUT", self._path(action))

    def restart(self, *, include_tasks: bool, only_failed: bool) -> None:
        """Restart tasks, or with `include_tasks` false look up credentials and topics again."""
        flags = {"includeTasks": str(include_tasks).lower(), "onlyFailed": str(only_failed).lower()}
        self._send("POST", self._path("restart"), params=flags)

    def restart_task(self, task: int) -> None:
        """Restart one task of any worker."""
        self._send("POST", self._path(f"tasks/{task}/restart"))

    def _path(self, rest: str) -> str:
        return f"/connectors/{quote(self.name, safe='')}/{rest}"

    def _of_sink(self, method: str, rest: str, kind: type[T], **more: Any) -> T:
        return self._ask(method, self._path(rest), kind, **more)

    def _ask(self, method: str, path: str, kind: type[T], **more: Any) -> T:
        answer = self._send(method, path, **more)
        try:
            return TypeAdapter(kind).validate_json(answer.content)
        except ValidationError as error:
            raise self._no_sink(answer) from error

    def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, **more)
        except (httpx2.TransportError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise SinkUnreachable(
                f"no sink answers at {self.url}: {error or type(error).__name__}",
                hint="start one with `keyfold sink run CONFIG`, or name its address with --url",
            ) from error
        if answer.is_success:
            return answer
        raise self._refusal(answer)

    def _refusal(self, answer: httpx2.Response) -> KeyfoldError:
        try:
            message = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            return self._no_sink(answer)
        hint = None
        if answer.status_code == 401:
            hint = f"give CONFIG, which has rest.token, or set {TOKEN_VARIABLE}"
        elif answer.status_code == 503:
            hint = "retry in a few seconds"
        return SinkRefused(f"{self.url}: {message}", status=answer.status_code, hint=hint)

    def _no_sink(self, answer: httpx2.Response) -> KeyfoldError:
        text = " ".join(answer.text[:_TEXT_MAX].split())
        return SinkRefused(
            f"{self.url} is not the REST API of a sink: it answered {answer.status_code} {text}".rstrip(),
            status=answer.status_code,
            hint="name the sink's address with --url; `listeners` in its configuration has it",
        )
