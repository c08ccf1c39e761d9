"""`make pictures`: write the SVG files of docs/images from their sources.

    docs/diagrams/*.puml    diagrams, drawn by PlantUML; its jar comes from Maven Central, once
    `keyfold demo`          the steps, the table and the proofs of a run, as a terminal shows them

Fonts decide the measures of an SVG, so two machines draw different bytes. Each diagram therefore names the SHA-256 of
its sources in a comment, and a test compares that.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from keyfold_demo.java import JarSet, default_cache, find_java, jars
from tests.support.root import ROOT

DIAGRAMS: Final = ROOT / "docs" / "diagrams"
IMAGES: Final = ROOT / "docs" / "images"
STYLE: Final = DIAGRAMS / "style.iuml"
DEMO: Final = IMAGES / "demo.svg"
_VERSION: Final = "1.2025.10"
_PLANTUML: Final = JarSet("PlantUML", f"plantuml/{_VERSION}", (("net.sourceforge.plantuml", "plantuml-mit", _VERSION),))
_COLUMNS: Final = 104
_SHOWN: Final = re.compile(r"✓|    \$|  ✓|  [a-z]|   +sunk|$")
"""Lines of the demo that the picture shows: steps, commands, the table, and what was proved."""


def digest(diagram: Path) -> str:
    """Return the SHA-256 of a diagram and the style that it includes."""
    return hashlib.sha256(diagram.read_bytes() + STYLE.read_bytes()).hexdigest()


def draw(diagram: Path) -> str:
    """Return the SVG of a diagram."""
    (jar,) = jars(_PLANTUML, default_cache()).glob("plantuml-*.jar")
    command = [find_java(), "-Djava.awt.headless=true", "-jar", str(jar), "-tsvg", "-nometadata", "-pipe"]
    svg = subprocess.run(
        command, cwd=DIAGRAMS, input=diagram.read_bytes(), stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    return f"{re.sub(r'<[?]plantuml[^>]*[?]>', '', svg).rstrip()}\n<!-- sources: {digest(diagram)} -->\n"


def picture_of(text: str) -> str:
    """Return what the demo printed as a picture of a terminal, without the lines that matter least."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    lines = [line for line in text.splitlines() if _SHOWN.match(line)]
    console.print(Text("$ make demo", "bold"))
    for line in lines:
        console.print(Text(line[:_COLUMNS], "green" if line.lstrip().startswith("✓") else ""), soft_wrap=True)
    svg = console.export_svg(title="keyfold demo", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # fonts of another host


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    for diagram in sorted(DIAGRAMS.glob("*.puml")):
        (IMAGES / f"{diagram.stem}.svg").write_text(draw(diagram), encoding="utf-8")
        print(f"docs/images/{diagram.stem}.svg")
    command = [str(Path(sys.executable).with_name("keyfold")), "demo"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    DEMO.write_text(picture_of(run.stdout), encoding="utf-8")
    print("docs/images/demo.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
