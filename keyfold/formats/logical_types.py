"""What Avro's logical types become, in Python and for Arrow.

    logical type                Python                       raw, from which Arrow makes its arrays
    date                        date                         days since 1970-01-01
    time-millis, -micros        time                         ms or µs since midnight
    timestamp-millis, -micros   datetime in UTC              ms or µs since the epoch
    timestamp-nanos             int: ns since the epoch      ns since the epoch
    local-timestamp-...         datetime without a zone      as above
    decimal                     Decimal, exact               Decimal, exact
    uuid                        UUID                         str
    duration                    (months, days, ms)           bytes

A number is turned into the reader's unit; into a coarser one it is rounded down. Python's `datetime` knows the years
1 to 9999; raw numbers have no such limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from keyfold.formats.avro_schema import Fixed, Logical, Primitive

Convert = Callable[[Any], Any]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_LOCAL: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a local time has no zone
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
DAY_SECONDS: Final = 86_400
DECIMAL_BYTES_MAX: Final = 1_785
"""How long a decimal may be: 4,299 digits. To find the digits takes quadratic time, so Python itself refuses 4,301."""


def exact_decimal(data: bytes, scale: int) -> Decimal:
    """Return the decimal whose unscaled value is `data`, big-endian in two's complement, with every digit.

    Raise `ValueError` if `data` is longer than `DECIMAL_BYTES_MAX`.
    """
    if len(data) > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal of {len(data)} bytes is longer than the limit of {DECIMAL_BYTES_MAX}")
    unscaled = int.from_bytes(data, "big", signed=True)
    sign, digits = (1, str(-unscaled)) if unscaled < 0 else (0, str(unscaled))
    return Decimal((sign, tuple(map(int, digits)), -scale))


def fit_decimal(value: Decimal, target: Logical) -> Decimal:
    """The same number with exactly the scale of `target`. Raises `ValueError` where it has digits beyond the target's.

    Arrow is given no other decimal: it rescales by tables of powers of ten, and an exponent beyond them, which a few
    bytes can say, ends the process.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a decimal has the value {value}, which is not a finite number")  # noqa: TRY004 - what is not finite is a fault of the data
    shift = exponent + target.scale if value else -len(digits)
    kept = digits[: max(0, len(digits) + shift)]
    if any(digits[len(kept) :]) or len(kept) + max(0, shift) > target.precision:
        raise ValueError(f"it is not exact in {target.precision} digits with {target.scale} decimal places")
    return Decimal((sign, (*kept, *(0,) * shift) or (0,), -target.scale))


def unit_of(logical: Logical | None) -> tuple[str, str]:
    """What a number counts (`time`, `timestamp`, or nothing), and its unit."""
    if logical is None:
        return "", ""
    kind, _, unit = logical.name.removeprefix("local-").rpartition("-")
    return (kind, unit) if unit in PER_SECOND else ("", "")


def conversion(written: Primitive | Fixed, target: Primitive | Fixed, *, raw: bool) -> Convert | None:
    """How a value of the written type, already promoted to the target's, becomes the target's; None: as it is."""
    logical = target.logical
    if logical is None:
        return None
    wanted, scale_to_unit = logical, _rescaled(written.logical, logical)
    if written.logical is not None and written.logical.name == "decimal" == logical.name:
        logical = written.logical  # the number is what was written; the target's scale only says how it is kept
    final = _raw(logical) if raw else _python(logical)
    if raw and final is not None and logical.name == "decimal":
        return lambda data: fit_decimal(final(data), wanted)
    if scale_to_unit is None:
        return final
    if final is None:
        return scale_to_unit
    return lambda value: final(scale_to_unit(value))


def _rescaled(written: Logical | None, target: Logical) -> Convert | None:
    kind, unit = unit_of(written)
    target_kind, target_unit = unit_of(target)
    if not kind or kind != target_kind or unit == target_unit:
        return None
    times, parts = PER_SECOND[target_unit], PER_SECOND[unit]
    return lambda value: value * times // parts


def _raw(logical: Logical) -> Convert | None:
    if logical.name == "decimal":
        return lambda data: exact_decimal(data, logical.scale)
    if logical.name == "uuid":
        return uuid_text
    return None


def uuid_text(data: str | bytes) -> str:
    """A UUID as text in its canonical form. Raises `ValueError` if it is malformed."""
    return str(UUID(data) if isinstance(data, str) else UUID(bytes=data))


def _python(logical: Logical) -> Convert | None:  # noqa: PLR0911 - one for each logical type
    if logical.name == "uuid":
        return lambda data: UUID(data) if isinstance(data, str) else UUID(bytes=data)
    if logical.name == "date":
        return lambda days: date.fromordinal(days + EPOCH_DAY)
    if logical.name == "duration":
        return lambda data: struct.unpack("<III", data)
    kind, unit = unit_of(logical)
    if not kind:
        return _raw(logical)
    if unit == "nanos":
        return None
    micros = 10**6 // PER_SECOND[unit]
    if kind == "time":
        return lambda count: _time_of_day(count * micros)
    epoch = EPOCH_LOCAL if logical.name.startswith("local-") else EPOCH
    return lambda count: epoch + timedelta(microseconds=count * micros)


def _time_of_day(micros: int) -> Any:
    if not 0 <= micros < DAY_SECONDS * 10**6:
        raise ValueError(f"{micros} µs is not a time of day")
    return (EPOCH_LOCAL + timedelta(microseconds=micros)).time()
