"""The pictures of the documentation are drawn from their present sources and need no other host."""

from __future__ import annotations

import re

from tests.support.pictures import DIAGRAMS, IMAGES, digest, picture_of

DEMO = """\
✓ Compact: the first pass removes what was superseded  11.3 s
    $ keyfold compact run compact.json --once
    files-0: 2442 -> 256 records

                    sunk    after pass 1
  records          7,768             994

  ✓ the sink wrote every record of the topic once, in order

Next:
    keyfold --help
"""


def test_every_diagram_was_drawn_from_its_present_sources() -> None:
    diagrams = sorted(DIAGRAMS.glob("*.puml"))
    assert diagrams
    old = [one.name for one in diagrams if digest(one) not in (IMAGES / f"{one.stem}.svg").read_text(encoding="utf-8")]
    assert old == [], "run `make pictures`"


def test_no_picture_loads_anything_from_another_host() -> None:
    for picture in IMAGES.glob("*.svg"):
        text = re.sub(r"<!--.*?-->", "", picture.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert re.findall(r"https?://(?!www\.w3\.org/)\S+", text) == [], picture.name
        assert "<script" not in text


def test_the_demo_s_picture_has_its_steps_its_table_and_its_proofs() -> None:
    shown = re.sub(r"&#160;", " ", re.sub(r"<[^>]+>", "\n", picture_of(DEMO)))
    for line in (
        "the first pass removes",
        "$ keyfold compact run",
        "after pass 1",
        "7,768",
        "the sink wrote every record",
    ):
        assert line in shown
    assert "2442" not in shown
    assert "keyfold --help" not in shown
