"""Translation of the Java clients' keys and JAAS logins for librdkafka. Pure.

Most keys of both have the same name, and users have files for Kafka's own tools (`--command-config`). So equivalent
keys are translated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

JAAS: Final = "sasl.jaas.config"

SAME_AS: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "max.request.size": "message.max.bytes",
}
"""Java's key -> librdkafka's."""

_JAAS_MODULE: Final = re.compile(r"\s*[\w.]*(?:Plain|Scram)LoginModule\s+required\b(?P<options>.*);\s*", re.DOTALL)
# A key begins where a word does: else each letter of a long one would be tried as a beginning, to its end.
_JAAS_OPTION: Final = re.compile(r"(?<!\w)(?P<key>\w+)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>[^\s\";]+))")


def translated(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a client's settings with librdkafka's names."""
    found = {SAME_AS.get(key, key): value for key, value in settings.items() if key != JAAS}
    if JAAS in settings:
        user, password = user_of_jaas(settings[JAAS]) or ("", "")
        found.setdefault("sasl.username", user)
        found.setdefault("sasl.password", password)
    return found


def user_of_jaas(text: str) -> tuple[str, str] | None:
    """Return user and password of a Java client's JAAS configuration; None for another kind."""
    module = _JAAS_MODULE.fullmatch(text)
    if module is None:
        return None
    options = {
        match["key"]: re.sub(r"\\(.)", r"\1", match["quoted"]) if match["quoted"] is not None else match["plain"]
        for match in _JAAS_OPTION.finditer(module["options"])
    }
    if "username" not in options or "password" not in options:
        return None
    return options["username"], options["password"]
