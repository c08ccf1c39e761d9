"""How a fuzzer changes bytes, text and JSON. Chance is a seeded `random.Random`, so a change can be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

from keyfold.log.avro import read_varint, varint

Json = Any
Mutator = Callable[[bytes, Sequence[bytes], Random], bytes]
"""Change a case; the sequence holds other seeds of the same target, to take pieces from."""

GROWN_BYTES_MAX: Final = 1 << 20
"""No mutation makes a case much larger than this: large objects have tests of their own."""
_EDGES: Final = (0, 1, -1, 2, 63, 64, 127, 128, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53 + 1,
                 2**62, 2**63 - 1, -(2**63), 2**63, 2**64)  # fmt: skip
_OVERLONG: Final = (b"\x80" * 9 + b"\x01", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80\x00", b"\xff" * 9 + b"\x02")
# Text that a decoder may take for a number, a path, a pattern or a name.
_TEXTS: Final = (
    "", " ", "\0", "a\0b", "null", "true", "-0", "1e400", "NaN", "9" * 5000, "-1", "0x10", "1_000", "٣", "..",
    "../../x", "/", "partition=0", "é", "\U0001f600", "\ud800", "x" * 5000, "${env:HOME}", "(",
    "a{99999999999999999999}", "(?P<a>", "[", "*", "\\", "(" * 2000, "s3://", "bytes", "string", "record",
    "Infinity", "1970-01-01", "decimal",
)  # fmt: skip
# Texts of JSON that no tree of values stands for.
_RAW_JSON: Final = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" * 400, "1" * 5000,
                    "1e9999999999999999999", "[" * 3000 + "]" * 3000, "01", "",
                    '"\\ud800"', "{", '{"a":1,"a":2}', "-0", "1.0", "1e2", "0.1e-400")  # fmt: skip


def flip(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Change some bits."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Put other bytes in place of some."""
    at = random.randrange(len(data) + 1)
    fill = random.choice((random.randbytes(random.randrange(1, 12)), b"\0" * 8, b"\xff" * 8, b"\x80" * 12))
    return data[:at] + fill + data[at + len(fill) :]


def cut(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Take the end away, the beginning, or something between."""
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return random.choice((data[:start], data[:-1], data[end:], data[:start] + data[end:]))


def repeat(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Say something twice, or many times."""
    start = random.randrange(len(data) + 1)
    piece = data[start : start + random.randrange(1, 64)]
    times = random.choice((2, 3, 1000)) if len(data) < GROWN_BYTES_MAX else 1
    return data[:start] + piece * times + data[start + len(piece) :]


def insert(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Put some bytes in."""
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.randrange(1, 40)) + data[at:]


def splice(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Start as one seed and continue as another."""
    other = random.choice(others) if others else data
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def varints(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Write another number where a varint may be: a count, a length, an offset."""
    if not data:
        return varint(random.choice(_EDGES[:17]))
    at = random.randrange(len(data))
    try:
        value, end = read_varint(data, at)
    except ValueError:
        return overwrite(data, (), random)
    near = (value + 1, value - 1, -value, value * 2, len(data), len(data) - end, *_EDGES[:17])
    number = random.choice(near)
    written = varint(number) if -(2**63) <= number < 2**63 else random.choice(_OVERLONG)
    if random.randrange(6) == 0:
        written = random.choice(_OVERLONG)
    return data[:at] + written + data[end:]


def fixed_numbers(data: bytes, _others: Sequence[bytes], random: Random) -> bytes:
    """Write an edge of 32 or 64 bits, in either order of bytes."""
    size = random.choice((4, 8))
    number = random.choice(_EDGES) % (1 << 8 * size)
    at = random.randrange(max(1, len(data) - size + 1))
    return data[:at] + number.to_bytes(size, random.choice(("little", "big"))) + data[at + size :]


BYTES: Final[tuple[Mutator, ...]] = (flip, overwrite, cut, repeat, insert, splice, varints, fixed_numbers)


def any_bytes(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change bytes in one of all the ways above."""
    return random.choice(BYTES)(data, others, random)


# Text and JSON


def other_text(text: str, random: Random) -> str:
    """Change a text a little, or give quite another one."""
    if random.randrange(2):
        return random.choice(_TEXTS)
    at = random.randrange(len(text) + 1)
    piece = random.choice((*_TEXTS[:14], ".", "-", "=", ",", "\n", "\x1b[2J"))
    return random.choice((text[:at] + piece + text[at:], text[:at], text[at:], text * 2, text.upper()))


def _other_value(value: Json, random: Random) -> Json:
    """A value in place of another one: of the same kind half of the time."""
    if random.randrange(2):
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return random.choice((value + 1, -value, random.choice(_EDGES)))
        if isinstance(value, str):
            return other_text(value, random)
    any_value: tuple[Json, ...] = (
        None, True, False, random.choice(_EDGES), 0.5, 1e300, -0.0, "", random.choice(_TEXTS), [], {}, [value],
        {"a": value}, [None], [[]], {"": None},
    )  # fmt: skip
    return random.choice(any_value)


def _inner(tree: Json) -> Iterable[tuple[Any, Json]]:
    if isinstance(tree, dict):
        return tree.items()
    return enumerate(tree) if isinstance(tree, list) else ()


def _place(tree: Json, random: Random) -> tuple[Any, ...]:
    """Choose one place of a tree, each as likely as the others.

    No list of all paths is made: a deep tree with many leaves has gigabytes of them.
    """
    count, waiting = 0, [tree]
    while waiting:
        count += 1
        waiting += [value for _, value in _inner(waiting.pop())]
    before = random.randrange(count)
    reached: list[tuple[Json, Any]] = [(tree, None)]  # each with its key and how the tree above it was reached
    while True:
        value, link = reached.pop()
        if not before:
            path = []
            while link is not None:
                link, key = link
                path.append(key)
            return tuple(reversed(path))
        before -= 1
        reached += reversed([(each, (link, key)) for key, each in _inner(value)])


def _changed_at(tree: Json, path: tuple[Any, ...], change: Callable[[Json], Json]) -> Json:
    if not path:
        return change(tree)
    key, *rest = path
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[key] = _changed_at(copy[key], tuple(rest), change)
    return copy


def json_tree(tree: Json, others: Sequence[Json], random: Random) -> Json:
    """Change one place of a tree: another value, a key or an item more or less, a piece of another tree."""

    def change(value: Json) -> Json:
        choice = random.randrange(6)
        if choice == 0 and isinstance(value, dict) and value:
            gone = random.choice(list(value))
            return {key: each for key, each in value.items() if key != gone}
        if choice == 1 and isinstance(value, dict) and value:
            old = random.choice(list(value))
            return {(other_text(key, random) if key == old else key): each for key, each in value.items()}
        if choice == 2 and isinstance(value, list) and value:
            return random.choice((value[1:], value * 2, value[::-1], [*value, random.choice(value)], value[:1] * 50))
        if choice == 3 and others:
            other = random.choice(others)
            return _at(other, _place(other, random))
        if choice == 4:
            levels = random.choice((1, 2, 70, 400))
            for _ in range(levels):
                value = [value] if random.randrange(2) else {"a": value}
            return value
        return _other_value(value, random)

    return _changed_at(tree, _place(tree, random), change)


def _at(tree: Json, path: tuple[Any, ...]) -> Json:
    for key in path:
        tree = tree[key]
    return tree


def json_document(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the tree of a JSON document, or write what no tree stands for; bytes that are no JSON as bytes."""
    try:
        tree = json.loads(data)
        trees = [json.loads(other) for other in others]
    except (ValueError, RecursionError):
        return any_bytes(data, others, random)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        tree = json_tree(tree, trees, random)
    mark = "\x01raw\x01"
    is_raw = random.randrange(8) == 0
    try:
        if is_raw:
            tree = _changed_at(tree, _place(tree, random), lambda _: mark)
        text = json.dumps(tree, ensure_ascii=bool(random.randrange(2)))
    except RecursionError:
        return data
    if is_raw:
        text = text.replace(json.dumps(mark), random.choice(_RAW_JSON))
    return text.encode("utf-8", "surrogatepass")


def text_line(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change a line of text, mostly so that it stays text."""
    if random.randrange(4) == 0:
        return any_bytes(data, others, random)
    return other_text(data.decode("utf-8", "replace"), random).encode("utf-8", "surrogatepass")


# Cases of several parts


def pack(*parts: bytes) -> bytes:
    """Several parts as one case."""
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def unpack(data: bytes, count: int) -> list[bytes]:
    """The `count` parts of a case that `pack` made. What a mutator cut off is empty, what it added is left out."""
    parts = []
    for _ in range(count):
        size = int.from_bytes(data[:4])
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts


def parts_by(*mutators: Mutator) -> Mutator:
    """A mutator of packed cases: one part is changed by its own mutator, or taken from another case."""

    def mutate(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
        count = len(mutators)
        parts, theirs = unpack(data, count), [unpack(other, count) for other in others]
        at = random.randrange(count)
        same = [other[at] for other in theirs]
        if same and random.randrange(8) == 0:
            parts[at] = random.choice(same)
        else:
            parts[at] = mutators[at](parts[at], same, random)
        return pack(*parts)

    return mutate
