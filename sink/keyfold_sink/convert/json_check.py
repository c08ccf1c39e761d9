"""JSON: a valid document, and where schemas are on, Connect's envelope with a payload that fits.

Whatever Connect's JsonConverter refuses fails here. So does what it takes only by dropping or changing something in
silence: what follows the document, a text where its schema says a number. docs/converters.md has the list, and a test
puts the same questions to Connect's own.

A producer writes the same schema before every payload, byte for byte. So the bytes up to the payload are remembered
with the check of their schema, and most documents are parsed from there on.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import orjson

from keyfold_sink.convert.columns import BatchId, Failure, Headers, LocalCheck, exhaust
from keyfold_sink.convert.connect_schema import Fit, Misfit, SchemaInvalid, compile_fit

_BOM: Final = b"\xef\xbb\xbf"
_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
_PREFIXES: Final = 8
_BRACE: Final = ord("}")
_SPACE: Final = b" \t\r\n"
_NO_ENVELOPE: Final = (
    "is no object of the two members schema and payload, which schemas.enable=true asks for; for plain JSON set "
    "schemas.enable=false"
)


class NotJson(Exception):
    """The bytes are no JSON document; the message says why."""


def parse(value: bytes) -> Any:
    """A JSON document. Raises `NotJson`.

    orjson refuses some that Jackson takes: a byte order mark, halves of surrogate pairs, numbers beyond a double.
    """
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as first:
        try:
            return json.loads(value.removeprefix(_BOM).decode(), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            raise NotJson(f"is not UTF-8: {error.reason} at byte {error.start}") from error
        except RecursionError as error:
            raise NotJson("is nested too deeply") from error
        except ValueError:
            raise NotJson(f"is no JSON: {first}") from first


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class JsonCheck(LocalCheck):
    """Any JSON document. Nothing at all, or white space, counts as null, as it does for Connect."""

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[Failure]:
        """See `ColumnCheck`."""
        try:
            exhaust(map(orjson.loads, filter(None, column)))
        except orjson.JSONDecodeError:
            found = [(index, _not_json(value)) for index, value in enumerate(column) if value and value.strip(_SPACE)]
            return [Failure(index, "not JSON", message) for index, message in found if message]
        return ()


def _not_json(value: bytes) -> str:
    try:
        parse(value)
    except NotJson as error:
        return str(error)
    return ""


class EnvelopeCheck(LocalCheck):
    """Connect's envelope: `{"schema": ..., "payload": ...}` and nothing else."""

    def __init__(self, *, replace_null_with_default: bool, cache_size: int) -> None:
        self._replace = replace_null_with_default
        self._cache_size = cache_size
        self._fits: OrderedDict[bytes, Fit | SchemaInvalid] = OrderedDict()
        self._prefixes: dict[bytes, Fit] = {}

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[Failure]:
        """See `ColumnCheck`."""
        found: list[Failure] = []
        prefix, fit, skip = _SCHEMA, None, 0
        for index, value in enumerate(column):
            if value is None:
                continue
            if fit is None or not value.startswith(prefix):
                prefix, fit = self._known_prefix(value)
                skip = len(prefix)
            if fit is not None and value[-1] == _BRACE:
                try:
                    fit(orjson.loads(value[skip:-1]))
                    continue
                except (orjson.JSONDecodeError, Misfit, RecursionError):
                    pass
            failure = self._failure(index, value)
            if failure is not None:
                found.append(failure)
            elif fit is None:
                self._learn_prefix(value)
        return found

    def _failure(self, index: int, value: bytes) -> Failure | None:
        try:
            document = parse(value)
            if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
                return Failure(index, "no envelope", _NO_ENVELOPE)
            self._fit(document["schema"])(document["payload"])
        except NotJson as error:
            return Failure(index, "not JSON", str(error))
        except SchemaInvalid as error:
            return Failure(index, "schema invalid", f"has a schema that Connect does not know: {error}")
        except Misfit as error:
            return Failure(index, "payload does not fit", f"has a payload that is not of its schema: {error}")
        except RecursionError:
            return Failure(index, "not JSON", "is nested too deeply")
        return None

    def _fit(self, schema: Any) -> Fit:
        """The check of a schema, compiled once."""
        key = _bytes_of(schema)
        found = self._fits.get(key)
        if found is None:
            try:
                found = compile_fit(schema, replace_null_with_default=self._replace)
            except SchemaInvalid as error:
                found = error
            self._fits[key] = found
            if len(self._fits) > self._cache_size:
                self._fits.popitem(last=False)
        else:
            self._fits.move_to_end(key)
        if isinstance(found, SchemaInvalid):
            raise found
        return found

    def _known_prefix(self, value: bytes) -> tuple[bytes, Fit | None]:
        for prefix, fit in self._prefixes.items():
            if value.startswith(prefix):
                return prefix, fit
        return b"", None

    def _learn_prefix(self, value: bytes) -> None:
        """Remember what other values of the same producer begin with; `value` is a document that has passed."""
        end = value.find(_PAYLOAD)
        if end < 0 or not value.startswith(_SCHEMA):
            return
        try:
            fit = self._fit(orjson.loads(value[len(_SCHEMA) : end]))
        except (orjson.JSONDecodeError, SchemaInvalid):
            return  # the words were found inside the schema
        if len(self._prefixes) >= _PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]
        self._prefixes[value[: end + len(_PAYLOAD)]] = fit


def _bytes_of(schema: Any) -> bytes:
    try:
        return orjson.dumps(schema)
    except TypeError:  # a number or a text that orjson does not write
        return json.dumps(schema).encode()


class OneSchemaCheck(LocalCheck):
    """Documents without an envelope, all of one schema (`schema.content`)."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[Failure]:
        """See `ColumnCheck`."""
        found: list[Failure] = []
        for index, value in enumerate(column):
            if value is None:
                continue
            try:
                self._fit(parse(value) if value else None)
            except NotJson as error:
                found.append(Failure(index, "not JSON", str(error)))
            except Misfit as error:
                message = f"is not of the schema in schema.content: {error}"
                found.append(Failure(index, "payload does not fit", message))
            except RecursionError:
                found.append(Failure(index, "not JSON", "is nested too deeply"))
        return found
