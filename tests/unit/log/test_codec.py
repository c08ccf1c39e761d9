"""Every codec gives back what it got, and says so when it cannot."""

import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyfold.log import codec as module
from keyfold.log.codec import CODECS, DecompressionFailed, open_codec
from keyfold.runtime.zstd import zstd
from tests.support.segments import plain_records

RAW = b"".join(r.value or b"" for r in plain_records(50)) + bytes(3000)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("raw", [b"x", RAW, bytes(1_000_000)])
def test_every_codec_round_trips(name: str, raw: bytes) -> None:
    codec = open_codec(name)
    assert codec.name == name
    for _ in range(3):
        assert bytes(codec.decompress(memoryview(codec.compress(raw)))) == raw


@pytest.mark.parametrize("name", ["zstandard", "snappy"])
def test_every_flipped_bit_is_found_or_harmless(name: str) -> None:
    codec = open_codec(name)
    raw = RAW[:2000] + bytes(200)
    stored = codec.compress(raw)
    found = 0
    for position in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            try:
                assert codec.decompress(bytes(damaged)) == raw  # bits that mean nothing: padding
            except DecompressionFailed:
                found += 1
    assert found > 0.95 * 8 * len(stored)


@pytest.mark.parametrize("name", ["zstandard", "snappy", "deflate"])
def test_truncated_and_extended_payloads_are_refused(name: str) -> None:
    codec = open_codec(name)
    stored = codec.compress(RAW)
    for damaged in (b"", stored[:3], stored[:5], stored[: len(stored) // 2], stored[:-1], stored + b"\0"):
        with pytest.raises(DecompressionFailed):
            codec.decompress(damaged)


def test_zstandard_frames_carry_checksum_and_size() -> None:
    stored = open_codec("zstandard").compress(RAW)
    assert zstd.get_frame_info(stored).decompressed_size == len(RAW)
    assert stored[4] & 0b100
    assert zstd.decompress(stored) == RAW


def test_the_zstandard_level_takes_effect() -> None:
    text = b"".join(b"record %d of some text; " % (i * i) for i in range(5000))
    assert len(open_codec("zstandard", 19).compress(text)) < len(open_codec("zstandard", 1).compress(text))


def test_snappy_ends_in_the_checksum_that_avro_asks_for() -> None:
    assert open_codec("snappy").compress(RAW)[-4:] == zlib.crc32(RAW).to_bytes(4, "big")


def test_snappy_does_not_trust_a_declared_size() -> None:
    with pytest.raises(DecompressionFailed, match="cannot decompress to"):
        open_codec("snappy").decompress(b"\xff\xff\xff\xff\x0f" + bytes(10))


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(ValueError, match="unknown codec 'lz4'; the codecs are zstandard"):
        open_codec("lz4")


def test_zstandard_keeps_as_many_compressors_as_worked_concurrently_not_one_per_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_idle_compressors", {})
    monkeypatch.setattr(module, "_idle_decompressors", [])
    codec = open_codec("zstandard")

    def there_and_back() -> None:
        assert codec.decompress(open_codec("zstandard").compress(RAW)) == RAW

    for _ in range(20):
        thread = threading.Thread(target=there_and_back)
        thread.start()
        thread.join()
    assert len(module._idle_compressors[1]) == len(module._idle_decompressors) == 1


def test_concurrent_compression_is_thread_safe() -> None:
    raws = [bytes([n % 251]) * 5000 + RAW for n in range(400)]
    codec = open_codec("zstandard")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda raw: codec.decompress(codec.compress(raw)), raws)) == raws


def test_a_failed_compressor_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def compress(self, raw: bytes, mode: int) -> bytes:
            raise MemoryError

    failing: list[object] = [Failing()]
    monkeypatch.setattr(module, "_idle_compressors", {1: failing})
    codec = open_codec("zstandard")
    with pytest.raises(MemoryError):
        codec.compress(RAW)
    assert failing == []
    assert codec.decompress(codec.compress(RAW)) == RAW
