"""A copy of the source tree in which mutants are planted, one after another.

Tests start commands of keyfold as processes of their own, with environments of their own. So the copy has a virtual
environment, too: the packages are those of the original by symbolic links, and only what points to the source tree
(`.pth` files, the first lines of scripts) points to the copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.mutants import ROOT
from tests.support.mutants.mutant import Mutant

_SHEBANG: Final = b"#!"


class Tree:
    """One copy, for one mutant at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._planted: tuple[Path, str, int] | None = None
        self._writes = 0
        for name in _source_files():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        cache = ROOT / ".cache"
        if cache.is_dir():
            (root / ".cache").symlink_to(cache.resolve())
        _copy_environment(Path(sys.prefix), root / ".venv", root)

    @property
    def python(self) -> Path:
        """The interpreter of the copy."""
        return self.root / ".venv" / "bin" / "python"

    def plant(self, mutant: Mutant) -> None:
        """Put the mistake in. Raises `MutantError`."""
        assert self._planted is None
        path = mutant.path(self.root)
        text = path.read_text(encoding="utf-8")
        made = mutant.applied(text)
        self._planted = path, text, path.stat().st_mtime_ns
        self._writes += 1
        path.write_text(made, encoding="utf-8")
        # Python recompiles a module where its time differs in whole seconds, or its size: two writes in one second
        # would otherwise look like one.
        moved_ns = self._planted[2] + self._writes * 2_000_000_000
        os.utime(path, ns=(moved_ns, moved_ns))

    def mend(self) -> None:
        """Take the mistake out again."""
        if self._planted is not None:
            path, text, modified_ns = self._planted
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(modified_ns, modified_ns))
            self._planted = None


def _source_files() -> list[str]:
    """Files of the source tree: what git knows, and what is new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _copy_environment(original: Path, made: Path, root: Path) -> None:
    if not (original / "pyvenv.cfg").is_file():
        raise SystemExit(f"{sys.executable} is not in a virtual environment; run `make mutants`")
    packages = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    (made / "bin").mkdir(parents=True)
    (made / packages).mkdir(parents=True)
    shutil.copy2(original / "pyvenv.cfg", made)
    for path in (original / "bin").iterdir():
        _copy_program(path, made / "bin" / path.name, original, made)
    for path in (original / packages).iterdir():
        if path.suffix == ".pth":
            (made / packages / path.name).write_text(_moved(path.read_text(encoding="utf-8"), root), encoding="utf-8")
        elif path.name != "__pycache__":
            (made / packages / path.name).symlink_to(path)


def _copy_program(path: Path, to: Path, original: Path, made: Path) -> None:
    data = b"" if path.is_symlink() or path.is_dir() else path.read_bytes()
    if path.is_symlink():
        to.symlink_to(path.readlink())
    elif data.startswith(_SHEBANG) and os.fsencode(original) in data.partition(b"\n")[0]:
        to.write_bytes(data.replace(os.fsencode(original), os.fsencode(made), 1))
        shutil.copymode(path, to)
    else:
        to.symlink_to(path)


def _moved(text: str, root: Path) -> str:
    """The lines of a `.pth` file, those in the source tree moved to the copy."""
    lines = text.splitlines()
    moved = [str(root / Path(line).relative_to(ROOT)) if _is_below(line) else line for line in lines]
    return "\n".join(moved) + "\n"


def _is_below(line: str) -> bool:
    return line.startswith("/") and Path(line).is_relative_to(ROOT)
