"""A bare installation works, or names the extra it needs; and no command is forgotten here."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from uuid import uuid4

import click
import pytest

from keyfold.cli.app import EXTRAS
from keyfold.errors import ExtraMissing
from keyfold.runtime.extras import needs_extra
from tests.support.bare_install import COMMANDS, LIBRARIES_OF_EXTRAS, Scene, findings
from tests.support.moto import LocalS3Process


@pytest.mark.full
def test_without_extras_everything_works_or_names_its_extra(local_s3: LocalS3Process, tmp_path: Path) -> None:
    scene = Scene.make(local_s3, f"bare-{uuid4().hex[:12]}", tmp_path)
    assert findings(sys.executable, scene, hidden=LIBRARIES_OF_EXTRAS) == []


def test_every_command_is_tried(commands: dict[str, click.Command]) -> None:
    assert {line.partition(" {")[0] for line, _ in COMMANDS} == commands.keys()


def test_the_extras_of_commands_are_of_packages() -> None:
    assert set(EXTRAS) <= {point.name for point in entry_points(group="keyfold.commands")}


def test_a_missing_library_is_an_import_error_with_a_hint() -> None:
    with pytest.raises(ImportError) as caught, needs_extra("reading minds", "minds"):
        import keyfold_mind  # type: ignore[import-not-found]  # noqa: F401 - it does not exist
    assert isinstance(caught.value, ModuleNotFoundError), "an import of keyfold's own is a bug, and stays what it is"
    with pytest.raises(ExtraMissing) as missing, needs_extra("reading minds", "minds"):
        import mind_reader  # type: ignore[import-not-found]  # noqa: F401 - it does not exist
    assert str(missing.value) == (
        "reading minds needs the extra `minds`: No module named 'mind_reader'; pip install 'keyfold[minds]'"
    )
