"""The chart with values of a test's own: what it takes least, and what it makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from keyfold.config.config_file import parse_json, resolve
from keyfold_sink.config.examine import examine
from keyfold_sink.config.options import SinkOptions
from tests.support.helm import one
from tests.support.rendered import Object, Pod, pods

SMALL: Final[dict[str, Any]] = {
    "store": {"bucket": "log"},
    "sink": {"bootstrapServers": "kafka:9092", "config": {"topics": "users"}},
}
_FILES: Final = {"sink": "sink.json", "compactor": "compact.json", "replica": "replica.json"}


def with_values(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """SMALL, changed; what is given stays as it is."""
    found: dict[str, Any] = deepcopy(SMALL)
    for change in changes:
        _merge(found, deepcopy(dict(change)))
    return found


def _merge(target: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def config(objects: list[Object], service: str, *, prefix: str = "kf-keyfold") -> dict[str, str]:
    """A rendered configuration, its placeholders filled in with words."""
    file = _FILES[service]
    text = one(objects, "ConfigMap", f"{prefix}-{service}")["data"][file]
    written = parse_json(text, file)
    names = {name for value in written.values() for name in re.findall(r"\$\{env:(\w+)\}", value)}
    return resolve(written, dict.fromkeys(names, "given"))


def command(pod: Pod) -> list[str]:
    """The words of a pod's first container."""
    container = pod.containers[0]
    return [*container.get("command", []), *container.get("args", [])]


def found_pod(objects: list[Object], owner: str) -> Pod:
    """The pod of `Kind/name`."""
    return next(pod for pod in pods(objects) if pod.owner == owner)


def sink_options(objects: list[Object]) -> SinkOptions:
    """What the sink makes of its configuration."""
    found = examine(config(objects, "sink"), {})
    assert found.options is not None, found.mistakes
    return found.options
