"""A flame graph of the sink on values of 1,000 bytes, from samples of its Python threads by py-spy.

    python -m tests.bench.report.flame [--quick] [--json]

It shows Python threads and their calls of C code. Threads of Kafka's client are missing. Frames have the names of
modules and functions, and no path of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape
from zlib import crc32

from tests.bench._sinks import Ground
from tests.bench.report.results import Result, Row, rows_as_json
from tests.support.kafka import KafkaBroker
from tests.support.versitygw import Versitygw

FLAME: Final = "sink-1kb-flame"
VALUE_BYTES: Final = 1000
SAMPLES_PER_S: Final = 500
LEAST_SHARE: Final = 0.002
"""Stacks with a smaller share of the samples are left out."""
WAITING: Final = ("keyfold_sink.write.io_pool.IoPool._run",)
"""Functions that only wait. py-spy counts some waits in C code as work."""

_WIDTH, _HEIGHT, _HEAD, _CHAR = 1200, 17, 40, 6.3
_FRAME: Final = re.compile(r"(?P<function>.+) \((?P<file>[^()]*?)(?::\d+)?\)")
_SITE: Final = re.compile(r".*/(?:site-packages|python3\.\d+|sink|compactor)/")


def frames(stack: str) -> list[str]:
    """Return `module.function` for each frame of a stack that py-spy printed, the outermost first."""
    return [_short(frame) for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]


def _short(frame: str) -> str:
    found = _FRAME.fullmatch(frame)
    if found is None:
        return Path(frame).name
    file = _SITE.sub("", found["file"])
    if file.startswith("/"):
        file = Path(file).name
    module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__").strip("<>")
    return f"{module}.{found['function']}"


def stacks(raw: str) -> list[Row]:
    """Return the stacks of py-spy's raw output with their samples, without the rare ones."""
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, samples = line.rpartition(" ")
        if (names := frames(stack)) and names[-1] not in WAITING:
            found[";".join(names)] += int(samples)
    least = found.total() * LEAST_SHARE
    return [{"stack": stack, "samples": count} for stack, count in sorted(found.items()) if count >= least]


@dataclass(slots=True)
class Frame:
    """A function, its samples, and the functions that it calls."""

    name: str
    samples: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)

    def boxes(self, start: int = 0, depth: int = 0) -> Iterator[tuple[Frame, int, int]]:
        """Yield each frame with the samples to its left and its depth."""
        yield self, start, depth
        for called in self.calls.values():
            yield from called.boxes(start, depth + 1)
            start += called.samples


def tree(rows: Iterable[Row]) -> Frame:
    """Return the stacks as a tree."""
    root = Frame("all")
    for row in rows:
        at = root
        at.samples += row["samples"]
        for name in row["stack"].split(";"):
            at = at.calls.setdefault(name, Frame(name))
            at.samples += row["samples"]
    return root


def flame_svg(result: Result) -> str:
    """Return the flame graph: the outermost call is at the top, and a box is as wide as its share of the samples."""
    root = tree(result.rows)
    boxes = list(root.boxes())
    height = _HEAD + _HEIGHT * (max(depth for _, _, depth in boxes) + 1) + 10
    title = f"keyfold's sink, values of {VALUE_BYTES:,} bytes: {root.samples:,} samples, commit {result.commit}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        "<style>.f { font: 10px monospace }</style>",
        f'<text x="10" y="24" font-size="14" font-family="sans-serif">{escape(title)}</text>',
    ]
    scale = (_WIDTH - 20) / max(root.samples, 1)
    lines += [_box(frame, 10 + start * scale, _HEAD + depth * _HEIGHT, scale, root) for frame, start, depth in boxes]
    return "\n".join([*lines, "</svg>", ""])


def _box(frame: Frame, x: float, y: int, scale: float, root: Frame) -> str:
    width = frame.samples * scale
    fits = int((width - 4) / _CHAR)
    text = frame.name if len(frame.name) <= fits else f"{frame.name[: fits - 1]}…" if fits > 3 else ""
    label = f'<text x="{x + 3:.1f}" y="{y + 12}" class="f">{escape(text)}</text>' if text else ""
    tip = escape(f"{frame.name}: {frame.samples / root.samples:.1%}")
    hue = 20 + crc32(frame.name.split(".")[0].encode()) % 200
    return (
        f'<g><title>{tip}</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.2):.1f}" height="{_HEIGHT - 1}" '
        f'fill="hsl({hue},65%,78%)"/>{label}</g>'
    )


def sample(count: int) -> str:
    """Run the sink under py-spy. Return the raw output."""
    with (
        KafkaBroker(heap_mb=768) as broker,
        Versitygw() as store,
        tempfile.TemporaryDirectory(prefix="keyfold-bench-") as folder,
    ):
        store.create_bucket("bench")
        ground = Ground(broker, store, Path(folder))
        ground.fill("flame", count, VALUE_BYTES)
        config, raw = Path(folder, "sink.json"), Path(folder, "raw.txt")
        config.write_text(json.dumps(ground.config("flame", "flame", 1, {})), encoding="utf-8")
        sampler = [str(Path(sys.executable).with_name("py-spy")), "record", "--subprocesses", "--function"]
        sampler += ["--rate", str(SAMPLES_PER_S), "--format", "raw", "--output", str(raw)]
        sink = [sys.executable, "-m", "keyfold_sink", "run", str(config), "--until-caught-up", "--json"]
        # The sink is a child of the sampler, which needs no rights for that.
        environment = {**os.environ, **store.environment}
        subprocess.run([*sampler, "--", *sink], env=environment, stdout=sys.stderr, check=True)
        return raw.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--json", action="store_true", help="print the stacks as JSON")
    given = parser.parse_args()
    with rows_as_json(given.json) as rows:
        rows.extend(stacks(sample(100_000 if given.quick else 1_000_000)))
        for row in sorted(rows, key=lambda row: -row["samples"])[:20]:
            print(f"{row['samples']:>8} {row['stack'].rpartition(';')[2]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
