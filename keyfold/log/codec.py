"""How a block's bytes are compressed: Avro's four codecs, by Avro's names.

zstandard is the default. Its frames carry content size and checksum, so a flipped bit is found when a block is read.
snappy is raw snappy and the CRC-32 of the uncompressed bytes, big endian, as Avro wants it. deflate is raw deflate.
deflate and null carry no checksum of their own: there the CRC-32 that an index keeps for each stored block
(`keyfold.log.index.BlockTable`) is the only guard below that of the whole object.

Compressors and decompressors are kept between blocks, which saves their set-up: as many (of a level) as have ever been
at work at once, whichever segment or thread it was for. Python's own zstd makes a new decompressor for each frame,
which costs a fifth of the time of reading a block of 64 KiB; the package `zstandard` keeps one.

A few stored bytes can claim to hold gigabytes. So a caller says how many bytes it takes at most, and no memory is taken
for more: zstandard and snappy say the size up front, deflate is stopped behind that size.
"""

from __future__ import annotations

import sys
import zlib
from typing import Final, Protocol

import zstandard

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Bytes = bytes | bytearray | memoryview

DEFAULT_CODEC: Final = "zstandard"
DEFAULT_LEVEL: Final = 1

# zstd's frame header descriptor: reserved, unused and checksum bits. Ours always have the checksum and nothing else;
# the unused bit is one that no decoder looks at, so a flip there would pass.
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_FLAGS: Final = 0b0001_1100
_ZSTD_CHECKSUM: Final = 0b0000_0100

MAX_RAW_BYTES: Final = 2**31 - 1
"""More than a block can have in any codec: positions in it have 32 bits."""


class DecompressionFailed(ValueError):
    """The bytes are not what this codec wrote."""


class TooLarge(DecompressionFailed):
    """They hold more bytes than the caller takes."""

    def __init__(self, stored_bytes: int, max_bytes: int) -> None:
        super().__init__(f"{stored_bytes} bytes declare an uncompressed size of more than {max_bytes}")


class Codec(Protocol):
    """One compression, both ways."""

    @property
    def name(self) -> str:
        """Avro's name, as `avro.codec` has it."""

    def compress(self, raw: Bytes) -> bytes:
        """A block's payload, as it is stored."""

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        """The payload's raw bytes. Raises `TooLarge` where they are more than `max_bytes`, `DecompressionFailed`."""

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        """The first raw bytes, at most `n_bytes` of them. Raises `DecompressionFailed`."""


# What nobody uses now. A used compressor holds 400 KiB: too much for each of hundreds of open segments, and for each
# of the dozens of threads of a sink, which mostly wait for the store. Taking from a list and giving back is atomic.
_idle_compressors: Final[dict[int, list[zstd.ZstdCompressor]]] = {}
_idle_decompressors: Final[list[zstandard.ZstdDecompressor]] = []


def _new_compressor(level: int) -> zstd.ZstdCompressor:
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: level,
        parameter.checksum_flag: 1,
        parameter.content_size_flag: 1,
    }
    return zstd.ZstdCompressor(options=options)


class _Zstandard:
    name = "zstandard"

    def __init__(self, level: int) -> None:
        self._level = level
        self._idle = _idle_compressors.setdefault(level, [])

    def compress(self, raw: Bytes) -> bytes:
        try:
            compressor = self._idle.pop()
        except IndexError:
            compressor = _new_compressor(self._level)
        # A frame that is given whole carries its content size: libzstd knows it from the first and only call.
        frame: bytes = compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        self._idle.append(compressor)  # not one that has failed: it may be in the middle of a frame
        return frame

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        if len(stored) < 6 or bytes(stored[:4]) != _ZSTD_MAGIC or stored[4] & _ZSTD_FLAGS != _ZSTD_CHECKSUM:
            raise DecompressionFailed("not a zstandard frame with a checksum")
        try:
            size = zstandard.frame_content_size(stored)
        except zstandard.ZstdError as e:
            raise DecompressionFailed(str(e)) from e
        if not 0 <= size <= max_bytes:
            raise TooLarge(len(stored), max_bytes)
        try:
            decompressor = _idle_decompressors.pop()
        except IndexError:
            decompressor = zstandard.ZstdDecompressor()
        try:
            raw: bytes = decompressor.decompress(stored, allow_extra_data=False)
        except (zstandard.ZstdError, MemoryError) as e:
            raise DecompressionFailed(str(e)) from e
        _idle_decompressors.append(decompressor)
        return raw

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        try:
            with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
                found: bytes = reader.read(n_bytes)
        except (zstandard.ZstdError, MemoryError) as e:
            raise DecompressionFailed(str(e)) from e
        return found


class _Snappy:
    name = "snappy"
    # Snappy's copies reach back 64 KiB and a byte or more of input makes at most 64 of output.
    _MAX_RATIO = 64

    def __init__(self) -> None:
        import pyarrow as pa  # a third of a second and 17 MB, which a sink's supervisor is spared

        self._codec = pa.Codec("snappy")
        self._damaged = (OSError, ValueError, pa.ArrowException)

    def compress(self, raw: Bytes) -> bytes:
        packed: bytes = self._codec.compress(raw, asbytes=True)
        return packed + zlib.crc32(raw).to_bytes(4, "big")

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        packed = memoryview(stored)[:-4]
        size = _snappy_size(packed)
        if size > self._MAX_RATIO * len(packed):
            raise DecompressionFailed(f"{len(packed)} bytes cannot decompress to {size}")
        if size > max_bytes:
            raise TooLarge(len(stored), max_bytes)
        try:
            raw: bytes = self._codec.decompress(packed, size, asbytes=True)
        except self._damaged as e:
            raise DecompressionFailed(str(e)) from e
        if zlib.crc32(raw) != int.from_bytes(stored[-4:], "big"):
            raise DecompressionFailed("CRC-32 differs")
        return raw

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        # Nobody unpacks a part of it. It is no bomb either: it cannot hold more than 64 times its size.
        return memoryview(self.decompress(stored, MAX_RAW_BYTES))[:n_bytes]


def _snappy_size(packed: memoryview) -> int:
    """The uncompressed size that raw snappy begins with, a varint of at most five bytes."""
    size = 0
    for i, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    raise DecompressionFailed("the uncompressed size is missing")


class _Deflate:
    name = "deflate"

    def __init__(self, level: int) -> None:
        self._level = level

    def compress(self, raw: Bytes) -> bytes:
        packer = zlib.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
        return packer.compress(raw) + packer.flush()

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            raw = unpacker.decompress(stored, max_bytes + 1)
        except zlib.error as e:
            raise DecompressionFailed(str(e)) from e
        if len(raw) > max_bytes:
            raise TooLarge(len(stored), max_bytes)
        if not unpacker.eof or unpacker.unused_data:
            raise DecompressionFailed("the deflate stream does not end where the block does")
        return raw

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, n_bytes)
        except zlib.error as e:
            raise DecompressionFailed(str(e)) from e


class _Null:
    name = "null"

    def compress(self, raw: Bytes) -> bytes:
        return bytes(raw)

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        if len(stored) > max_bytes:
            raise TooLarge(len(stored), max_bytes)
        return stored

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        return memoryview(stored)[:n_bytes]


CODECS: Final = ("zstandard", "snappy", "deflate", "null")


def open_codec(name: str, level: int = DEFAULT_LEVEL) -> Codec:
    """A codec by Avro's name; `level` counts for zstandard and deflate. Raises `ValueError` for an unknown name."""
    match name:
        case "zstandard":
            return _Zstandard(level)
        case "snappy":
            return _Snappy()
        case "deflate":
            return _Deflate(level)
        case "null":
            return _Null()
        case _:
            raise ValueError(f"unknown codec {name!r}; the codecs are {', '.join(CODECS)}")
