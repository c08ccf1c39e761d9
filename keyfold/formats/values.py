"""One key or value to one Python value, for each format.

    bytes     bytes
    string    str; the bytes are UTF-8
    json      what json.loads returns; Connect's envelope is opened
    avro      by the writer schema in the archive, for the reader's schema if there is one

What is not of its format is a `FormatMismatch`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from threading import Lock
from typing import Final, NoReturn, Protocol, cast

from keyfold.formats.avro_read import FAULTS, Into, Read, compile_reader, fault_text
from keyfold.formats.avro_resolve import Action, resolve_framed
from keyfold.formats.avro_schema import NotAvro, Type, avro_type
from keyfold.formats.confluent_framing import read_frame
from keyfold.formats.connect_json import Envelope, is_envelope
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.formats.format import RecordPart
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.record import Header

try:
    import orjson
except ImportError:  # it makes reading JSON faster, and nothing else
    orjson = None  # type: ignore[assignment]  # a module otherwise

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_ENVELOPES: Final = 64
_PREFIXES: Final = 8
_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'


class Values(Protocol):
    """Turns bytes that are not null into values."""

    def value(self, data: bytes, headers: Sequence[Header]) -> object:
        """The value. Raises `FormatMismatch`."""


class BytesValues:
    """Bytes as they are."""

    def value(self, data: bytes, headers: Sequence[Header]) -> object:  # noqa: ARG002 - a format may look at headers
        """See `Values`."""
        return data


class StringValues:
    """Text in UTF-8."""

    def value(self, data: bytes, headers: Sequence[Header]) -> object:  # noqa: ARG002 - the signature of the protocol
        """See `Values`."""
        return text_of(data)


def text_of(data: bytes) -> str:
    """Text in UTF-8. Raises `FormatMismatch`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatMismatch(f"is not UTF-8: {error.reason} at byte {error.start}") from error


class JsonValues:
    """JSON. Nothing but white space is null, as for Connect."""

    def __init__(self, *, exact: bool = False) -> None:
        """With `exact` numbers with a point are `Decimal`; without it only those of an envelope with decimals are."""
        self._parse = _parse_exact if exact else parse_json
        self._envelopes = Envelopes()
        self._prefixes: tuple[tuple[bytes, Envelope], ...] = ()

    def value(self, data: bytes, headers: Sequence[Header]) -> object:  # noqa: ARG002 - the signature of the protocol
        """See `Values`."""
        envelope, document = self.opened(data)
        return document if envelope is None else envelope.convert(document)

    def opened(self, data: bytes) -> tuple[Envelope | None, object]:
        """The envelope and the payload as it stands in it; None and the document where it is no envelope.

        A producer writes the same schema before every payload, byte for byte, and it is often far longer. So the bytes
        up to the payload are remembered with what they mean. Raises `FormatMismatch`.
        """
        for prefix, envelope in self._prefixes:
            if data.startswith(prefix) and data.endswith(b"}"):
                parse = _parse_exact if envelope.has_decimals else self._parse
                try:
                    return envelope, parse(data[len(prefix) : -1])
                except (ValueError, RecursionError):
                    break  # something else follows the payload, or it is wrong
        document = self._document(data, self._parse)
        if not is_envelope(document):
            return None, document
        found = self._envelopes.of(document["schema"])
        self._learn(data, document["schema"], found)
        if found.has_decimals and self._parse is not _parse_exact:
            document = cast("Mapping[str, object]", self._document(data, _parse_exact))
        return found, document["payload"]

    def documents(self, data: Sequence[bytes | None]) -> list[object] | None:
        """The documents of many values, as they stand; None where one is not JSON, or in an envelope.

        No bytes are no document: None.
        """
        parse: Callable[[bytes], object] = self._parse
        if orjson is not None and parse is parse_json and not _has_long_number(b" ".join(filter(None, data))):
            parse = orjson.loads
        try:
            found = [None if each is None else parse(each) for each in data]
        except (ValueError, RecursionError):
            return None
        pairs = [each for each in found if type(each) is dict and len(each) == 2]
        return None if any(map(is_envelope, pairs)) else found

    def _learn(self, data: bytes, schema: object, envelope: Envelope) -> None:
        end = data.find(_PAYLOAD)
        if end < 0 or not data.startswith(_SCHEMA):
            return
        try:
            if self._parse(data[len(_SCHEMA) : end]) != schema:
                return
        except (ValueError, RecursionError):
            return  # the words were found inside the schema
        self._prefixes = ((data[: end + len(_PAYLOAD)], envelope), *self._prefixes[: _PREFIXES - 1])

    def _document(self, data: bytes, parse: Callable[[bytes], object]) -> object:
        """The document as it stands. Raises `FormatMismatch`."""
        try:
            return parse(data.removeprefix(_BOM))
        except UnicodeDecodeError as error:
            raise FormatMismatch(f"is not UTF-8: {error.reason} at byte {error.start}") from error
        except RecursionError as error:
            raise FormatMismatch("is nested too deeply") from error
        except ValueError as error:
            if not data.strip(_SPACE):
                return None
            raise FormatMismatch(f"is not JSON: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(data: bytes) -> object:
    """Parse JSON in UTF-8: as Python's parser does, and by orjson where it is installed and finds the same.

    It finds the same in all that it accepts, but for whole numbers beyond 64 bits, which it rounds. Raises
    `ValueError`, and `RecursionError` for what is nested too deeply.
    """
    if orjson is not None and not _has_long_number(data):
        try:
            return orjson.loads(data)
        except ValueError:
            pass  # half of a surrogate pair, a number that is infinite, or an error, which Python's parser words
    return _decode(data.decode())


def _has_long_number(data: bytes) -> bool:
    """Whether a whole number may have more than 64 bits: digits where a number can begin, not those of a fraction."""
    zeros = data.translate(_DIGITS_AS_ZEROS)
    at = zeros.find(_LONG_NUMBER)
    while at >= 0:
        if zeros[at - 1 : at] in _BEFORE_A_NUMBER:
            return True
        at = zeros.find(_LONG_NUMBER, at + len(_LONG_NUMBER))
    return False


def _parse_exact(data: bytes) -> object:
    return _decode_exact(data.decode())


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"the exponent of {text[:40]} has too many digits") from error


_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19  # shorter ones have less than 64 bits
_BEFORE_A_NUMBER: Final = {b"", b"-", b":", b",", b"[", *(bytes([each]) for each in _SPACE)}
# Made once: `json.loads` makes a decoder in each call that has such arguments.
_decode: Final = json.JSONDecoder(parse_constant=_no_constant).decode
_decode_exact: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=_decimal).decode


class Envelopes:
    """Schemas of Connect's envelope, compiled; a producer repeats the same one in every value. For several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Envelope] = OrderedDict()
        self._lock = Lock()

    def of(self, schema: object) -> Envelope:
        """The envelope of a schema. Raises `FormatMismatch`."""
        try:
            key = json.dumps(schema, default=str)
        except RecursionError as error:
            raise FormatMismatch("has an envelope whose schema is nested too deeply") from error
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = Envelope(schema)
                if len(self._known) > _ENVELOPES:
                    self._known.popitem(last=False)
            return found


class WriterReaders:
    """What to do with the writer schemas that come by, found out once for each. For several threads."""

    def __init__(self, schemas: SchemaArchive, reader: Type | None, into: Into) -> None:
        self._schemas = schemas
        self._reader = reader
        self._into = into
        self._actions: dict[SchemaKey, Action] = {}
        self._reads: dict[SchemaKey, Read] = {}

    def action(self, key: SchemaKey) -> Action:
        """The resolution of a writer schema. Raises `FormatMismatch` if it is not archived or not Avro."""
        found = self._actions.get(key)
        if found is None:
            writer = self.writer(key)
            reader = writer if self._reader is None else self._reader
            found = self._actions[key] = resolve_framed(self._schemas.schema(key), writer, reader)
        return found

    def of(self, key: SchemaKey) -> Read:
        """The function for one value. Raises as `action`."""
        found = self._reads.get(key)
        if found is None:
            found = self._reads[key] = compile_reader(self.action(key), self._into)
        return found

    def writer(self, key: SchemaKey) -> Type:
        """A writer schema. Raises `FormatMismatch`."""
        try:
            return avro_type(self._schemas.schema(key), defaults=False)
        except NotAvro as error:
            raise FormatMismatch(
                f"names schema {key}, but the kept object is not an Avro schema: {error}", schema=key
            ) from error


def read_whole(read: Read, data: bytes, begin: int, key: SchemaKey) -> object:
    """The value that `data` is from `begin` to its end. Raises `FormatMismatch`."""
    try:
        value, end = read(data, begin)
    except FAULTS as error:
        raise FormatMismatch(f"cannot be decoded with schema {key}: {fault_text(error)}", schema=key) from error
    if end != len(data):
        raise FormatMismatch(f"has {len(data) - end} more bytes than schema {key} describes", schema=key)
    return value


class AvroValues:
    """Avro in Confluent's framing."""

    def __init__(self, part: RecordPart, schemas: SchemaArchive, reader: Type | None = None) -> None:
        self._header = part.schema_header
        self._readers = WriterReaders(schemas, reader, Into.PYTHON)

    def value(self, data: bytes, headers: Sequence[Header]) -> object:
        """See `Values`."""
        key, begin = read_frame(data, headers, self._header)
        return read_whole(self._readers.of(key), data, begin, key)
