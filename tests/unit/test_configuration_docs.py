"""The page of options is what the code says."""

from __future__ import annotations

from tests.support.configuration_docs import COMMAND, PAGE, page


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run `{COMMAND}`"
