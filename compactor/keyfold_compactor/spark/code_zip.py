"""keyfold's code as one zip that Spark ships and Python imports, and the script for spark-submit.

    python -m keyfold_compactor.spark.code_zip FOLDER     writes keyfold-<version>-spark.zip and keyfold_compact.py

The zip has the compactor's packages, the replicator's for `replicas.run`, and their metadata, by which `keyfold` finds
its commands and the replicator. It has no libraries: they contain native code, which Python cannot import from a zip.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

PACKAGES: Final = ("keyfold", "keyfold_compactor", "keyfold_replicator", "keyfold_schemas")
_METADATA: Final = ("METADATA", "entry_points.txt")


def is_shipped() -> bool:
    """Whether this code runs from a zip. Then Spark has it from `--py-files`, and gives it to executors itself."""
    return not _origin(PACKAGES[0]).is_file()


def write_code_zip(path: Path) -> Path:
    """Write the installed packages as a zip; return the path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            root = _origin(package).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, Path(package, file.relative_to(root)))
        installed = distribution("keyfold")
        for name in _METADATA:
            archive.writestr(f"keyfold-{installed.version}.dist-info/{name}", installed.read_text(name) or "")
    return path


def write_for_submit(folder: Path) -> tuple[Path, Path]:
    """Write the zip and the script into a folder, which is created; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    code = write_code_zip(folder / f"keyfold-{distribution('keyfold').version}-spark.zip")
    script = folder / "keyfold_compact.py"
    shutil.copyfile(Path(__file__).parents[1] / "__main__.py", script)
    return script, code


def _origin(package: str) -> Path:
    return Path(str(importlib.import_module(package).__file__))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m keyfold_compactor.spark.code_zip FOLDER")
    for written in write_for_submit(Path(sys.argv[1])):
        sys.stdout.write(f"{written}\n")
