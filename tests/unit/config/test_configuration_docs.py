"""The pages of options match the code."""

from __future__ import annotations

from tests.support.configuration_docs import COMMAND, MIGRATING, PAGE, migrating, page


def test_the_configuration_page_matches_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run `{COMMAND}`"


def test_the_tables_of_other_sinks_keys_match_the_code() -> None:
    text = MIGRATING.read_text(encoding="utf-8")
    assert text == migrating(text), f"run `{COMMAND}`"
