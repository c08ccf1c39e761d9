"""The text that Prometheus scrapes, byte for byte: names, kinds, help texts, labels and values of every service."""

from __future__ import annotations

import pytest

from tests.support.served_metrics import EXPOSITIONS, SERVICES, exposition


@pytest.mark.parametrize("service", SERVICES)
def test_a_services_exposition_is_unchanged(service: str) -> None:
    """After an intended change, `python -m tests.support.served_metrics` writes the files again."""
    assert exposition(service) == (EXPOSITIONS / f"{service}.txt").read_text(encoding="utf-8")
