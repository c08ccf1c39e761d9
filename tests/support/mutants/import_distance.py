"""How near a test file is to a module, by imports: 1 where it imports the module, 2 by way of another one, and so on.

It is a guess at what a recording knows, for modules and tests that were not recorded.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support.mutants import ROOT
from tests.support.mutants.recording import FOLDERS


@cache
def _graph() -> Mapping[str, frozenset[str]]:
    """Who is imported by whom: a module's name, and those that import it. Test files go by their paths."""
    importers: dict[str, set[str]] = {}
    for path in _python_files():
        name = _name_of(path)
        for imported in _imports(path):
            importers.setdefault(imported, set()).add(name)
    return {name: frozenset(found) for name, found in importers.items()}


def distances(module: str, most: int) -> dict[str, int]:
    """Test files (paths from the root) and how near they are, up to `most`."""
    graph = _graph()
    met = {module: 0}
    queue = deque([module])
    while queue:
        name = queue.popleft()
        if met[name] < most:
            for importer in graph.get(name, ()):
                if importer not in met:
                    met[importer] = met[name] + 1
                    queue.append(importer)
    return {name: distance for name, distance in met.items() if name.endswith(".py")}


def _python_files() -> Iterator[Path]:
    for folder in (*FOLDERS, "demo", "tests"):
        yield from (ROOT / folder).rglob("*.py")


def _name_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    if path.name.startswith("test_"):
        return str(relative)
    parts = list(relative.with_suffix("").parts)
    parts = parts[1:] if parts[0] in {"sink", "compactor", "replicator", "server", "schemas", "demo"} else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
