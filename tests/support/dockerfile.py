"""A Dockerfile as its instructions, stage by stage; enough for the rules that our own must keep."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "infra" / "images"


@dataclass(frozen=True, slots=True)
class Instruction:
    """`word` in capitals, `rest` with continued lines joined and comments left out."""

    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The exec form, or what stands between spaces."""
        return list(json.loads(self.rest)) if self.rest.startswith("[") else self.rest.split()


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` with the ARGs before the first FROM filled in."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[Instruction]:
        return [each for each in self.instructions if each.word == word]

    def last(self, word: str) -> Instruction:
        return self.all(word)[-1]

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for each in self.all("ENV") for pair in each.words]
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def labels(self) -> dict[str, str]:
        found = [re.findall(r'([\w.]+)="([^"]*)"', each.rest) for each in self.all("LABEL")]
        return {key: value for pairs in found for key, value in pairs}


def dockerfile(image: str) -> Path:
    return IMAGES / image / "Dockerfile"


def instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        Instruction(word.upper(), rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
    ]


def stages(text: str) -> list[Stage]:
    found = instructions(text)
    starts = [number for number, each in enumerate(found) if each.word == "FROM"]
    arguments = dict(each.rest.split("=", 1) for each in found[: starts[0]])
    made = []
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        base, *alias = re.split(r"\s+as\s+", found[start].rest, flags=re.IGNORECASE)
        base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match.group(1)], base)
        made.append(Stage(alias[0] if alias else "", base, tuple(found[start + 1 : end])))
    return made
