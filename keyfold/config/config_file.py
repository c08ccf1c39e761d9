"""A configuration file as text: key to value, all strings, as Kafka Connect writes it.

    {"name": "users", "config": {"topics": "users", "flush.size": "3000"}}      Connect's REST form
    {"name": "users", "topics": "users", "flush.size": 3000}                    the flat map
    topics=users                                                                .properties, Java's rules

Values may contain the placeholders `${env:VARIABLE}` and `${file:/path/to.properties:key}`, which are Kafka's
configuration providers, so that a file needs no secrets. A value that was filled in is a `Resolved`: a string that
error messages do not repeat. A key that is given twice with different values is an error.

Every output about a configuration goes through `shown` or `without_secrets`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from keyfold.errors import ConfigError

_PLACEHOLDER: Final = re.compile(r"\$\{(?P<provider>[A-Za-z][A-Za-z0-9_-]*):(?P<rest>[^}]*)\}")
# The beginning is enough to recognise a placeholder, and a search for it takes linear time.
_PLACEHOLDER_BEGINS: Final = re.compile(r"\$\{[^}:${]*:")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_REST_FORM_KEYS: Final = {
    "name",
    "config",
    "tasks",
    "type",
}  # Connect's REST API adds `tasks` and `type` to its answers


HIDDEN: Final = "[hidden]"
"""The text that replaces a secret where a configuration is shown, as in Kafka."""
# Keys that are passed on to clients are not declared here, so only their names tell which values are secrets.
_SECRET_WORDS: Final = re.compile(
    r"passw|passphrase|secret|token|credential|jaas|user\.?info|license|oauthbearer\.config|"
    r"(?:\.|^)key(?:\.pem)?$"
)
_NO_SECRETS: Final = (".location", ".url", ".source", ".class", ".type")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/?#@\s]*@")
# A shorter value may well be a part of another word.
_REPEATED_LENGTH: Final = 4


class Resolved(str):
    """A value that a provider filled in. It may be a secret, so messages do not repeat it.

    `written` is the placeholder in the file.
    """

    __slots__ = ("written",)

    written: str

    def __new__(cls, value: str, written: str = "${...}") -> Self:
        """Make a value that was filled in for the placeholder `written`."""
        made = super().__new__(cls, value)
        made.written = written
        return made


def is_secret_key(key: str) -> bool:
    """Return whether a key's name says that its value is a secret. `ssl.key.location` names a file and is not one."""
    return _SECRET_WORDS.search(key.lower()) is not None and not key.lower().endswith(_NO_SECRETS)


def shown(value: str, *, is_secret: bool) -> str:
    """Return a value as others may see it: secrets hidden, placeholders as they are written, no password in a URL."""
    if isinstance(value, Resolved):
        return value.written
    return HIDDEN if is_secret else _USER_IN_URL.sub(f"{HIDDEN}@", value)


def has_placeholder(value: str) -> bool:
    """Return whether a value may be one that a provider would fill in."""
    return _PLACEHOLDER_BEGINS.search(value) is not None


def placeholders(value: str) -> Iterator[tuple[str, str]]:
    """Yield the provider of each placeholder that `resolve` fills in, and what it names."""
    for match in _PLACEHOLDER.finditer(value):
        yield match["provider"], match["rest"]


def without_secrets(text: str, values: Mapping[str, str]) -> str:
    """Return a message without any value that may be a secret of this configuration."""
    for key, value in values.items():
        if isinstance(value, Resolved) or is_secret_key(key):
            for part in sorted({str(value), *map(str.strip, value.split(","))}, key=len, reverse=True):
                if part:
                    text = text.replace(repr(part), HIDDEN)
                if len(part) >= _REPEATED_LENGTH:
                    text = text.replace(part, HIDDEN)
    return _USER_IN_URL.sub(f"{HIDDEN}@", text)


def read_config(path: Path | str, *, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read a JSON or .properties file and fill in its placeholders.

    `environ` is the environment for `${env:...}`, by default that of the process. Raise `ConfigError` that names the
    key, or the file if it cannot be read.
    """
    return resolve(read_written(path), os.environ if environ is None else environ)


def read_written(path: Path | str) -> dict[str, str]:
    """Read a JSON or .properties file without filling in its placeholders. Raise `ConfigError` if that fails."""
    path = Path(path)
    text = _read_text(path, key=str(path))
    is_json = path.suffix == ".json" or (path.suffix != ".properties" and text.lstrip().startswith("{"))
    return parse_json(text, str(path)) if is_json else parse_properties(text)


def parse_json(text: str, source: str) -> dict[str, str]:
    """Parse either JSON form; numbers and booleans become text. `source` names the file in messages."""
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ConfigError(
            source, f"is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(source, f"contains a number with too many digits: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(source, "must be one JSON object")
    if isinstance(document.get("config"), dict):
        document = _flatten(document)
    return {key: _text(key, value) for key, value in document.items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise ConfigError(key, "is given twice, with different values")
    return found


def _flatten(document: dict[str, Any]) -> dict[str, Any]:
    for key in document:
        if key not in _REST_FORM_KEYS:
            raise ConfigError(key, "is outside of `config`", hint="move it into `config`")
    config: dict[str, Any] = document["config"]
    if "name" in document and config.setdefault("name", document["name"]) != document["name"]:
        raise ConfigError("name", f"is {document['name']!r} outside of `config`, but {config['name']!r} in it")
    return config


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise ConfigError(
        key, f"must be a string, a number or a boolean, not {'null' if value is None else 'a nested value'}"
    )


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's .properties: comments, continued lines, `=`, `:` or blanks after the key, backslash escapes."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _end_of_key(line)
        key = _unescape(line[:end])
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in {"=", ":"}:
            rest = rest[1:].lstrip(" \t\f")
        value = _unescape(rest)
        if found.setdefault(key, value) != value:
            raise ConfigError(key, "is given twice, with different values")
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and empty lines; continued lines are joined."""
    pending = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        yield pending
        pending = ""
    if pending:
        yield pending


def _end_of_key(line: str) -> int:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code, letter = match["code"], match["letter"]
        return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)

    return re.sub(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.))", plain, text, flags=re.DOTALL)


def resolve(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Fill in every placeholder. A filled-in value is not searched for placeholders again."""
    return {key: _resolve_one(key, value, environ) for key, value in values.items()}


def resolve_all(values: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigError]]:
    """Fill in placeholders as `resolve` does; return the values, and a mistake for each key where that fails."""
    found: dict[str, str] = {}
    mistakes: list[ConfigError] = []
    for key, value in values.items():
        try:
            found[key] = _resolve_one(key, value, environ)
        except ConfigError as mistake:
            mistakes.append(mistake)
    return found, mistakes


def _resolve_one(key: str, value: str, environ: Mapping[str, str]) -> str:
    if isinstance(value, Resolved) or _PLACEHOLDER.search(value) is None:
        return value

    def fill(match: re.Match[str]) -> str:
        provider, rest = match["provider"], match["rest"]
        if provider == "env":
            return _from_environment(key, rest, environ)
        if provider == "file":
            return _from_file(key, rest)
        raise ConfigError(key, f"unknown provider `{provider}` in `{match[0]}`", hint="use `env` or `file`")

    return Resolved(_PLACEHOLDER.sub(fill, value), value)


def _from_environment(key: str, name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise ConfigError(key, f"the environment variable `{name}` is not set")
    return environ[name]


def _from_file(key: str, rest: str) -> str:
    path, colon, name = rest.rpartition(":")
    if not colon or not path or not name:
        raise ConfigError(key, f"`${{file:{rest}}}` does not name a key", hint="write ${file:/path/to.properties:key}")
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError(key, f"`{path}` is not a regular file")  # a device may have no end
    found = parse_properties(_read_text(Path(path), key=key))
    if name not in found:
        raise ConfigError(key, f"`{path}` has no key `{name}`")
    return found[name]


def _read_text(path: Path, *, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(key, f"`{path}` cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(key, f"`{path}` is not UTF-8 at byte {error.start}") from error
