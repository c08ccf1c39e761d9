"""What other projects publish of the resources that the chart makes for them: Prometheus Operator's and KEDA's.

    for each in definitions(): kube.define(each)     their CustomResourceDefinitions, as one installs them
    scaler_parameters("kafka")                       what KEDA reads of a trigger, which the definition leaves open

`tests/support/go/crds` pins both as Go modules, by version and hash; the modules' own files are fetched, nothing that
they require, and nothing is built. The few files that are needed are kept in the cache, under a name that follows from
the pins: Go and a network are needed once. `python -m tests.support.crds` fetches ahead of the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from keyfold.errors import KeyfoldError
from keyfold_demo.java import default_cache, locked
from tests.support.go_program import SOURCES, find_go

Object = dict[str, Any]

_FOLDER: Final = SOURCES / "crds"
_PINS: Final = ("go.mod", "go.sum")
_KEDA: Final = "github.com/kedacore/keda/v2"
_OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator"
_FETCH_MAX_S: Final = 900


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a module has a definition, and the JSON patch with which its project publishes it, if there is one."""

    module: str
    path: str
    patch: str | None = None


_DEFINITIONS: Final = (
    *(
        Definition(_OPERATOR, f"example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml")
        for plural in ("podmonitors", "prometheusrules", "servicemonitors")
    ),
    Definition(_KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml", "config/crd/patches/scaledobject_patch.yaml"),
    Definition(_KEDA, "config/crd/bases/keda.sh_triggerauthentications.yaml"),
)
_SCALERS: Final = "schema/generated/scalers-schema.json"
_FILES: Final = (
    *((each.module, each.path) for each in _DEFINITIONS),
    *((each.module, each.patch) for each in _DEFINITIONS if each.patch is not None),
    (_KEDA, _SCALERS),
)


def definitions(cache: Path | None = None) -> list[Object]:
    """The CustomResourceDefinitions, patched as their projects patch them. Raises `KeyfoldError` as `fetched` does."""
    folder = fetched(cache)
    found = []
    for each in _DEFINITIONS:
        definition: Object = yaml.safe_load(_kept(folder, each.path).read_text(encoding="utf-8"))
        if each.patch is not None:
            _patch(definition, yaml.safe_load(_kept(folder, each.patch).read_text(encoding="utf-8")))
        found.append(definition)
    return found


def scaler_parameters(kind: str, cache: Path | None = None) -> dict[str, Object]:
    """What KEDA's scaler of that kind reads, by name."""
    scalers = json.loads(_kept(fetched(cache), _SCALERS).read_text(encoding="utf-8"))["scalers"]
    (found,) = (scaler["parameters"] for scaler in scalers if scaler["type"] == kind)
    return {each["name"]: each for each in found}


def fetched(cache: Path | None = None) -> Path:
    """The folder with the files, fetched if it is not there yet. Raises `KeyfoldError` where they cannot be had."""
    cache = cache or default_cache()
    folder = cache / f"crds-{_digest()}"
    if not folder.is_dir():
        with locked(cache / "crds.lock"):
            if not folder.is_dir():
                _fetch(folder)
    return folder


def _digest() -> str:
    """What tells one state of the pins, and of the list of files, from another."""
    pins = b"".join((_FOLDER / name).read_bytes() for name in _PINS)
    return hashlib.sha256(pins + repr(_FILES).encode()).hexdigest()[:8]


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".crds-") as work:
        module, wanted = Path(work) / "module", Path(work) / "wanted"
        module.mkdir()
        wanted.mkdir()
        for name in _PINS:  # Go may write to where it works
            shutil.copy(_FOLDER / name, module)
        places = dict(_downloaded(module))
        for path, file in _FILES:
            source = places[path] / file
            if not source.is_file():
                raise KeyfoldError(
                    f"{path} has no {file}", hint=f"see where it is in the version of {_FOLDER / _PINS[0]}"
                )
            shutil.copyfile(source, _kept(wanted, file))
        wanted.rename(folder)


def _downloaded(module: Path) -> Iterator[tuple[str, Path]]:
    """Each module's path, and the folder where Go has unpacked it after it had compared the hash."""
    answer = subprocess.run(
        [find_go("fetch the CustomResourceDefinitions"), "mod", "download", "-json"],
        cwd=module,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_FETCH_MAX_S,
    )
    if answer.returncode != 0:
        raise KeyfoldError(
            f"the CustomResourceDefinitions could not be fetched:\n{(answer.stderr + answer.stdout)[-2000:]}"
        )
    pinned = (module / "go.sum").read_text(encoding="utf-8").splitlines()
    for each in _concatenated(answer.stdout):
        line = f"{each['Path']} {each['Version']} {each['Sum']}"
        if line not in pinned:  # Go compares only what is there
            raise KeyfoldError(f"{_FOLDER / 'go.sum'} does not pin what is in a module", hint=f"add the line: {line}")
        yield each["Path"], Path(each["Dir"])


def _concatenated(text: str) -> Iterator[Object]:
    """JSON objects that follow one another."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:].lstrip()


def _kept(folder: Path, file: str) -> Path:
    """Names are unlike enough to lie in one folder."""
    return folder / Path(file).name


def _patch(target: Object, operations: list[Mapping[str, Any]]) -> None:
    """A JSON patch that only adds members to mappings, which is all that is in these."""
    for each in operations:
        assert each["op"] == "add", each
        *parents, last = each["path"].lstrip("/").split("/")
        place: Any = target
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = each["value"]


def main() -> int:
    """Fetch what is not there yet."""
    try:
        fetched()
    except KeyfoldError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
