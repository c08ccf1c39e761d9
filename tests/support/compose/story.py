"""What the README of the stack promises: it is started, filled, inspected, broken and removed by its own commands."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

from tests.support.compose.engine import Engine
from tests.support.compose.topic import TOPIC, Latest, end_offsets, latest

FOLDER: Final = Path(__file__).parents[3] / "infra" / "compose"
READY: Final = {"sink": 8083, "compactor": 9404, "replica": 9405}
PRODUCED: Final = 5000
KEYS: Final = 200
WAIT_TIMEOUT_S: Final = 300.0
SOURCE: Final = "s3://log/topics"
REPLICA: Final = "s3://log-dr/topics"


def tell(engine: Engine) -> None:
    start(engine)
    fill(engine, times=2)
    watched()
    look(engine)
    break_it(engine)
    agree(engine)
    assert {f"keyfold_{name}" for name in ("default", "kafka", "s3", "prometheus")} <= set(engine.remains())
    engine.compose("down", "--volumes")
    remains = engine.remains()
    assert remains == [], remains
    print("  holds: down --volumes leaves no container, no network and no volume", flush=True)


def start(engine: Engine) -> None:
    say("up comes back", lambda: engine.compose("up", "--detach"))
    setup = engine.state("setup")
    assert setup["ExitCode"] == 0, setup
    for service in READY:
        assert when(engine.state(service)["StartedAt"]) > when(setup["FinishedAt"]), service
    print("  holds: setup has completed before sink, compactor and replica were started", flush=True)
    for service, port in READY.items():
        until(f"{service} is ready", partial(is_ready, port))


def fill(engine: Engine, times: int) -> None:
    """By the README's command, which finds the stack as it should be: with setup done."""
    before = sum(end_offsets().values())
    for _ in range(times):
        produce(engine)
    ends = end_offsets()
    assert sum(ends.values()) == before + times * PRODUCED
    print(f"  holds: produce has brought the topic to {sum(ends.values()):,} records", flush=True)
    until("the log has all of them", lambda: log_ends(engine, SOURCE) == ends)


def produce(engine: Engine, *options: str) -> None:
    assert f"{PRODUCED} records written" in engine.compose("run", "--rm", *options, "produce")


def look(engine: Engine) -> None:
    expected = latest(end_offsets())
    for url in (SOURCE, REPLICA):
        until(f"{url} is cleaned, and the last record of each key is Kafka's", partial(cleaned, engine, url, expected))
    until("log and replica have the same records", lambda: cat(engine, REPLICA) == cat(engine, SOURCE))
    for words in readme_commands("Look"):
        if "--follow" not in words:
            assert engine.compose(*words).strip(), words
    print("  holds: the README's commands to look at it answer", flush=True)


def watched() -> None:
    """All three are scraped, and the alerts are loaded and evaluated without an error."""
    base = "http://127.0.0.1:9090/api/v1"
    jobs = {"keyfold-sink", "keyfold-compactor", "keyfold-replica"}

    def up() -> bool:
        found = ask(f"{base}/query?query=up")["data"]["result"]
        return {each["metric"]["job"] for each in found if each["value"][1] == "1"} == jobs

    until("Prometheus scrapes sink, compactor and replica", up)
    written = yaml.safe_load((FOLDER.parent / "prometheus" / "alerts.yaml").read_text())
    names = {rule["alert"] for group in written["groups"] for rule in group["rules"] if "alert" in rule}

    def evaluated() -> bool:
        rules = [rule for group in ask(f"{base}/rules")["data"]["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == names
        assert [rule for rule in rules if rule["health"] == "err"] == []
        return all(rule["health"] == "ok" for rule in rules)

    until(f"all {len(names)} alerts are loaded and evaluated", evaluated)


def break_it(engine: Engine) -> None:
    engine.compose("stop", "s3")
    produce(engine, "--no-deps")
    ends = end_offsets()
    time.sleep(15)  # longer than a segment is open
    assert status("http://127.0.0.1:8083/health/live") == 200
    print("  holds: without the store the sink lives on", flush=True)
    engine.compose("start", "s3")
    until("with the store again the log has all that was written meanwhile", lambda: log_ends(engine, SOURCE) == ends)
    say("every record is in the log once", lambda: verified(engine, SOURCE))

    produce(engine, "--no-deps")
    engine.compose("kill", "sink")
    produce(engine, "--no-deps")
    engine.compose("start", "sink")
    ends = end_offsets()
    until("a sink that was killed has caught up", lambda: log_ends(engine, SOURCE) == ends)
    say("every record is in the log once", lambda: verified(engine, SOURCE))

    engine.compose("stop", "kafka")
    time.sleep(15)
    assert status("http://127.0.0.1:8083/health/live") == 200
    print("  holds: without Kafka the sink lives on", flush=True)
    engine.compose("start", "kafka")
    until("Kafka is healthy again", lambda: engine.state("kafka")["Health"]["Status"] == "healthy")
    assert end_offsets() == ends
    fill(engine, times=1)
    say("every record is in the log once", lambda: verified(engine, SOURCE))


def agree(engine: Engine) -> None:
    """Kafka's own last record of each key is what log and replica have, and both are proved by `log verify`."""
    look(engine)
    for url in (SOURCE, REPLICA):
        verified(engine, url)


def verified(engine: Engine, url: str) -> None:
    inside(engine, "log", "verify", url, TOPIC, "--bootstrap-servers", "kafka:19092")


def cleaned(engine: Engine, url: str, expected: Latest) -> bool:
    """No more than a pass leaves undone: half of the log may be dirty before the next one is due."""
    found = documents(inside(engine, "log", "cat", url, TOPIC, "--latest", "--json"))
    living = {each["key"]: (each["partition"], each["offset"], each["value"]) for each in found}
    return living == expected and len(cat(engine, url)) <= 2 * KEYS


def cat(engine: Engine, url: str) -> list[dict[str, Any]]:
    return documents(inside(engine, "log", "cat", url, TOPIC, "--json"))


def log_ends(engine: Engine, url: str) -> dict[int, int]:
    listed = documents(inside(engine, "log", "list", url, "--json"))
    return {int(each["partition"]): int(each["next_offset"]) for each in listed}


def inside(engine: Engine, *words: str) -> str:
    """What a command of keyfold's printed, in a container that runs already."""
    return engine.compose("exec", "-T", "replica", "keyfold", *words)


def readme_commands(section: str) -> list[list[str]]:
    """The words after `docker compose` of each line in the code blocks of a section, comments left out."""
    text = (FOLDER / "README.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[2:] for each in words if each[:2] == ["docker", "compose"]]


def documents(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def when(stamp: str) -> datetime:
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamp))


def ask(url: str) -> Any:
    with urlopen(url, timeout=60) as answer:
        return json.load(answer)


def is_ready(port: int) -> bool:
    return status(f"http://127.0.0.1:{port}/health/ready") == 200


def status(url: str) -> int:
    try:
        with urlopen(Request(url), timeout=60) as answer:
            return int(answer.status)
    except (URLError, ConnectionError) as error:
        return int(getattr(error, "code", 0))


def until(what: str, is_so: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() < begun + WAIT_TIMEOUT_S, f"within {WAIT_TIMEOUT_S:.0f} s it did not come that {what}"
        time.sleep(1)
    print(f"  holds: {what} (after {time.monotonic() - begun:.0f} s)", flush=True)


def say(what: str, act: Callable[[], object]) -> None:
    begun = time.monotonic()
    act()
    print(f"  holds: {what} ({time.monotonic() - begun:.0f} s)", flush=True)
