"""Check JSON: a valid document or, with schemas, Connect's envelope with a payload that matches its schema.

A value that Connect's JsonConverter refuses fails here. So does a value that Connect accepts only by silently dropping
or changing a part: bytes after the document, a string instead of a number. docs/converters.md has the list, and a test
compares with Connect's own converter.

A producer writes the same schema before every payload, byte for byte. So the bytes up to the payload are cached with
the check of their schema, and most documents are parsed only from there on.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NoReturn

import orjson

from keyfold_sink.validate.convert.columns import BatchId, ColumnFailure, Headers, LocalCheck, exhaust
from keyfold_sink.validate.convert.connect_schema import EnvelopeMismatch, Fit, SchemaInvalid, compile_fit

_BOM: Final = b"\xef\xbb\xbf"
_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
_PREFIXES: Final = 8
_BRACE: Final = ord("}")
_SPACE: Final = b" \t\r\n"
_NO_ENVELOPE: Final = (
    "is not an object with exactly the members schema and payload, as schemas.enable=true requires; for plain JSON set "
    "schemas.enable=false"
)


class NotJson(Exception):
    """The bytes are not a valid JSON document; the message says why."""


def parse(value: bytes) -> object:
    """Parse a JSON document. Raise `NotJson`.

    orjson refuses some documents that Jackson accepts, with a byte order mark, half a surrogate pair, or a number
    beyond a double.
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
            raise NotJson(f"is not valid JSON: {first}") from first


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


class JsonCheck(LocalCheck):
    """The check of plain JSON. An empty value or white space counts as null, as in Connect."""

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        try:
            exhaust(map(orjson.loads, filter(None, column)))
        except orjson.JSONDecodeError:
            found = [(index, _not_json(value)) for index, value in enumerate(column) if value and value.strip(_SPACE)]
            return [ColumnFailure(index, "not JSON", message) for index, message in found if message]
        return ()


def _not_json(value: bytes) -> str:
    try:
        parse(value)
    except NotJson as error:
        return str(error)
    return ""


class EnvelopeCheck(LocalCheck):
    """The check of Connect's envelope: exactly `{"schema": ..., "payload": ...}`."""

    def __init__(self, *, replace_null_with_default: bool, cache_size: int) -> None:
        self._replace = replace_null_with_default
        self._cache_size = cache_size
        self._fits: OrderedDict[bytes, Fit | SchemaInvalid] = OrderedDict()
        self._prefixes: dict[bytes, Fit] = {}

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        found: list[ColumnFailure] = []
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
                except (orjson.JSONDecodeError, EnvelopeMismatch, RecursionError):
                    pass
            failure = self._failure(index, value)
            if failure is not None:
                found.append(failure)
            elif fit is None:
                self._learn_prefix(value)
        return found

    def _failure(self, index: int, value: bytes) -> ColumnFailure | None:
        try:
            document = parse(value)
            if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
                return ColumnFailure(index, "no envelope", _NO_ENVELOPE)
            self._fit(document["schema"])(document["payload"])
        except NotJson as error:
            return ColumnFailure(index, "not JSON", str(error))
        except SchemaInvalid as error:
            return ColumnFailure(index, "schema invalid", f"has an invalid Connect schema: {error}")
        except EnvelopeMismatch as error:
            return ColumnFailure(
                index, "payload does not fit", f"has a payload that does not match its schema: {error}"
            )
        except RecursionError:
            return ColumnFailure(index, "not JSON", "is nested too deeply")
        return None

    def _fit(self, schema: object) -> Fit:
        """Return the check of a schema, which is compiled once."""
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
        """Cache the bytes before the payload of `value`, which has passed; other values of its producer begin alike."""
        end = value.find(_PAYLOAD)
        if end < 0 or not value.startswith(_SCHEMA):
            return
        try:
            fit = self._fit(orjson.loads(value[len(_SCHEMA) : end]))
        except (orjson.JSONDecodeError, SchemaInvalid):
            return  # the separator is inside the schema
        if len(self._prefixes) >= _PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]
        self._prefixes[value[: end + len(_PAYLOAD)]] = fit


def _bytes_of(schema: object) -> bytes:
    try:
        return orjson.dumps(schema)
    except TypeError:  # a number or string that orjson does not encode
        return json.dumps(schema).encode()


class OneSchemaCheck(LocalCheck):
    """The check of documents without an envelope, all with one schema (`schema.content`)."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def failures(self, _batch: BatchId, column: Sequence[bytes | None], _headers: Headers) -> Sequence[ColumnFailure]:
        """See `ColumnCheck`."""
        found: list[ColumnFailure] = []
        for index, value in enumerate(column):
            if value is None:
                continue
            try:
                self._fit(parse(value) if value else None)
            except NotJson as error:
                found.append(ColumnFailure(index, "not JSON", str(error)))
            except EnvelopeMismatch as error:
                message = f"does not match the schema in schema.content: {error}"
                found.append(ColumnFailure(index, "payload does not fit", message))
            except RecursionError:
                found.append(ColumnFailure(index, "not JSON", "is nested too deeply"))
        return found
