"""Check whether the Kafka clients of a configuration can be made: combinations of keys, and the files that it names.

    parent   construction_mistakes(values) ── settings as JSON on stdin ─▶ python -m <this module>   child
                                           ◀─ what librdkafka refuses ───

librdkafka blocks the interpreter while it makes a client. A file that is a pipe, or is on a network share that hangs,
would stop every thread of this process meanwhile, so clients are made in a child process that has a deadline.

Only a configuration from an operator's file is checked here, never one that came over REST. The clients connect to
nothing: they have no brokers, and their token endpoint is an address without a listener. The child process does not get
the credentials for Kafka. It gets the passwords of key files, which only open these files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from keyfold.errors import ConfigError
from keyfold_sink.config.client_checks import CLIENT_PREFIXES, SECURITY_KEYS, client_refusal
from keyfold_sink.config.client_settings import translated

DEADLINE_S: Final = 30.0
_GROUP: Final = "keyfold.validate"
# The client also logs what it refuses; this module reports it instead.
_SILENT: Final = {"log_level": 0}
# A check of a configuration loads no libraries, runs no commands and has no brokers.
_LEFT_OUT: Final = frozenset(
    {
        "bootstrap.servers",
        "debug",
        "metadata.broker.list",
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
    }
)
# Values in place of credentials, and of addresses where a client would request a token.
_STAND_INS: Final = {
    "sasl.password": "hidden",
    "sasl.oauthbearer.client.secret": "hidden",
    "sasl.oauthbearer.client.credentials.client.secret": "hidden",
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/",
}
_KERBEROS: Final = "gssapi"
_MAKERS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "consumer.override.": lambda settings: Consumer({"group.id": _GROUP, **settings}).close(),
    "producer.override.": Producer,
    "admin.override.": AdminClient,
}


def construction_mistakes(values: Mapping[str, str], deadline_s: float = DEADLINE_S) -> Iterator[ConfigError]:
    """Make each client of a configuration once, in a child process; yield what librdkafka refuses.

    Every key must be right by itself (`client_mistakes`).
    """
    shared = translated({key: value for key, value in values.items() if key.startswith(SECURITY_KEYS)})
    wanted: dict[str, tuple[str, dict[str, str]]] = {}
    for prefix in CLIENT_PREFIXES:
        own = translated({k.removeprefix(prefix): value for k, value in values.items() if k.startswith(prefix)})
        if not (own or (shared and prefix == CLIENT_PREFIXES[0])):
            continue
        settings = {**shared, **own}
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))
        if not mechanism and settings.get("security.protocol", "").lower().startswith("sasl"):
            key = f"{prefix if 'security.protocol' in own else ''}sasl.mechanism"
            yield ConfigError(
                key,
                f"missing required key `{key}`",
                hint="set it to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI",
            )
        elif mechanism.lower() != _KERBEROS:
            wanted[prefix] = (prefix if own else "", _harmless(settings))
    if wanted:
        yield from _tried(wanted, deadline_s)


def _harmless(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: _STAND_INS.get(key, value) for key, value in settings.items() if key not in _LEFT_OUT}


def _tried(wanted: Mapping[str, tuple[str, dict[str, str]]], deadline_s: float) -> Iterator[ConfigError]:
    given = json.dumps({prefix: settings for prefix, (_, settings) in wanted.items()})
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(  # noqa: S603 - this very module
            command, input=given, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        named = [key for what, settings in wanted.values() for key in _files(what, settings)]
        yield ConfigError(
            named[0] if named else "consumer.override.*",
            f"the Kafka client could not be made within {deadline_s:g} s",
            hint=f"check that {', '.join(named) or 'each file'} names a regular file that can be read",
        )
        return
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        yield ConfigError("consumer.override.*", f"the Kafka client could not be checked: {last[0]}")
        return
    said: dict[str, str] = json.loads(done.stdout)
    for prefix, text in said.items():
        what, settings = wanted[prefix]
        yield client_refusal(what, settings, text)


def _files(what: str, settings: Mapping[str, str]) -> Iterator[str]:
    for key in settings:
        if key.endswith(".location"):
            yield f"{what}{key}"


def _main() -> None:
    """Make the clients that stdin describes, and print librdkafka's error for each as JSON."""
    said: dict[str, str] = {}
    for prefix, settings in json.load(sys.stdin).items():
        try:
            _MAKERS[prefix]({**settings, **_SILENT})
        except KafkaException as error:
            said[prefix] = error.args[0].str()
        except (TypeError, ValueError) as error:
            said[prefix] = str(error)
    print(json.dumps(said))  # noqa: T201 - the answer to the parent


if __name__ == "__main__":
    _main()
