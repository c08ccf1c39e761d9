"""The pages of options are what the code says."""

from __future__ import annotations

from tests.support.configuration_docs import COMMAND, MIGRATING, PAGE, migrating, page


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run `{COMMAND}`"


def test_the_tables_about_other_sinks_are_what_the_code_says() -> None:
    text = MIGRATING.read_text(encoding="utf-8")
    assert text == migrating(text), f"run `{COMMAND}`"
