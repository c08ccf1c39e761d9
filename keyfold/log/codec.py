"""Compression of blocks: Avro's four codecs, by Avro's names.

zstandard is the default. Its frames carry content size and checksum, so a flipped bit is found when a block is read.
snappy is raw snappy and the CRC-32 of the uncompressed bytes, big endian, as Avro requires. deflate is raw deflate.
deflate and null have no checksum: there the CRC-32 of each stored block in the index (`keyfold.log.index.BlockTable`)
is the only check besides that of the whole object.

Compressors and decompressors are reused between blocks, which saves their set-up. Their number (per level) is the
largest number that was ever in use at once, over all segments and threads. Python's own zstd creates a new decompressor
for each frame, which costs a fifth of the time to read a block of 64 KiB; the package `zstandard` reuses one.

A few stored bytes can expand to gigabytes. So a caller sets a limit, and no memory is allocated beyond it: zstandard
and snappy declare their size at the start, and deflate is stopped at the limit.
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol

import zstandard

from keyfold.runtime.buffers import Bytes
from keyfold.runtime.zstd import zstd

DEFAULT_CODEC: Final = "zstandard"
DEFAULT_LEVEL: Final = 1

# zstd's frame header descriptor: reserved, unused and checksum bits. keyfold's frames only have the checksum bit. No
# decoder checks the unused bit, so a flip there would not be detected otherwise.
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_FLAGS: Final = 0b0001_1100
_ZSTD_CHECKSUM: Final = 0b0000_0100

MAX_RAW_BYTES: Final = 2**31 - 1
"""Maximum size of a block in any codec: positions in it have 32 bits."""


class DecompressionFailed(ValueError):
    """The bytes were not written by this codec."""


class TooLarge(DecompressionFailed):
    """The uncompressed bytes exceed the caller's limit."""

    def __init__(self, stored_bytes: int, max_bytes: int) -> None:
        super().__init__(f"{stored_bytes} bytes declare an uncompressed size of more than {max_bytes}")


class Codec(Protocol):
    """Compression and decompression with one codec."""

    @property
    def name(self) -> str:
        """Avro's name, as `avro.codec` has it."""

    def compress(self, raw: Bytes) -> bytes:
        """Return the stored payload of a block."""

    def decompress(self, stored: Bytes, max_bytes: int = MAX_RAW_BYTES) -> Bytes:
        """Return the payload's raw bytes. Raises `TooLarge` above `max_bytes`, and `DecompressionFailed`."""

    def head(self, stored: Bytes, n_bytes: int) -> Bytes:
        """Return the first raw bytes, at most `n_bytes`. Raises `DecompressionFailed`."""


# Idle compressors. Each holds 400 KiB: too much for one per open segment (hundreds), or per thread of a sink (dozens,
# which mostly wait for the store). `pop` and `append` of a list are atomic.
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
        # A frame compressed in one call has its content size, because libzstd knows it from that call.
        frame: bytes = compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
        self._idle.append(compressor)  # a compressor that failed is not reused: it may be in the middle of a frame
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
    # Snappy's copies reach back 64 KiB, and one byte of input produces at most 64 bytes of output.
    _MAX_RATIO = 64

    def __init__(self) -> None:
        import pyarrow as pa  # late: it takes a third of a second and 17 MB, which a sink's supervisor does not need

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
        # Snappy cannot be decompressed in part. The result is bounded: at most 64 times the stored size.
        return memoryview(self.decompress(stored, MAX_RAW_BYTES))[:n_bytes]


def _snappy_size(packed: memoryview) -> int:
    """Return the uncompressed size at the start of raw snappy, a varint of at most five bytes."""
    size = 0
    for i, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    raise DecompressionFailed("snappy data does not begin with its uncompressed size")


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
    """Return a codec by Avro's name; `level` applies to zstandard and deflate. Raises `ValueError` for other names."""
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
