"""Which package provides the round of all replicas after a run of the compactor."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from keyfold.errors import ConfigError
from keyfold.replicas import after_run
from keyfold.replicas.after_run import ENTRY_POINTS, load_open_rounds
from keyfold_replicator.cli.after_run import open_rounds


def test_the_installed_replicator_provides_the_rounds() -> None:
    assert load_open_rounds() is open_rounds


@pytest.mark.parametrize(
    ("installed", "message"),
    [((), "no installed package can replicate"), (("a:b", "c:d"), "more than one package can replicate: a:b, c:d")],
)
def test_a_missing_or_ambiguous_provider_is_an_error_of_its_key(
    installed: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoints(EntryPoint("replica", value, ENTRY_POINTS) for value in installed)
    monkeypatch.setattr(after_run, "entry_points", lambda *, group: found.select(group=group))
    with pytest.raises(ConfigError, match=message) as caught:
        load_open_rounds()
    assert "`replicas.run`" in str(caught.value)
    assert caught.value.hint
