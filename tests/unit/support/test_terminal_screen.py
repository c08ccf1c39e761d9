"""What a person sees of a terminal."""

from __future__ import annotations

from tests.support.terminal import screen


def test_a_bar_that_was_cleared_is_not_on_the_screen() -> None:
    shown = b"\x1b[33mreading\x1b[0m 10 %\r\x1b[2Kreading 20 %\r\x1b[2Kdone\r\nnext\r\n"
    assert screen(shown) == ["done", "next"]


def test_long_lines_wrap_at_the_width() -> None:
    assert screen(b"abcdef", columns=4) == ["abcd", "ef"]
