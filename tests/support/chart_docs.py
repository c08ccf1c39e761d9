"""`make docs`: the chart's README is printed from values.yaml and ci/, and what the chart embeds is copied into it.

A `# --` comment above a key of values.yaml is a row of the table; one of a mapping covers all that is in it. The
comments at the top of a set of values say what it is for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.support.helm import CHART, VALUE_SETS

INFRA: Final = CHART.parents[1]
README: Final = CHART / "README.md"
COPIES: Final = {
    CHART / "files" / "alerts.yaml": INFRA / "prometheus" / "alerts.yaml",
    CHART / "files" / "dashboard.json": INFRA / "grafana" / "keyfold.json",
}
"""What the chart has to hold itself, since Helm reads nothing outside of it, and where it is from."""
_MARK: Final = "# -- "

_HEAD: Final = """# Helm chart of keyfold

<!-- Printed by `make docs` from values.yaml and ci/; edit those. -->

This chart runs the services of one bucket: the sink (StatefulSet), the compactor (CronJob or Deployment), the
replicator, the syncs of Iceberg tables and the server that answers by key (Deployments).
[docs/operations/kubernetes.md](../../../docs/operations/kubernetes.md) says how to install, size, secure and monitor
them.

```
helm install keyfold infra/helm/keyfold --namespace keyfold --create-namespace --values my-values.yaml
helm test keyfold --namespace keyfold --logs
```

`store.bucket` is required. The sink also requires `sink.bootstrapServers`, and in `sink.config` either `topics` or
`topics.regex`. The values `sink.config`, `compactor.config` and `replica.config` are flat maps of the keys of
[docs/configuration.md](../../../docs/configuration.md). A key with dots is one key. Write a long number as a string,
so that no digit is lost.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A key of values.yaml, its default, and what its comment says; no comment: empty."""

    path: str
    default: object
    text: str
    is_leaf: bool


def page() -> str:
    """README.md."""
    return f"{_HEAD}\n## Sets of values\n\n{_sets()}\n## Values\n\n{_table()}"


def values() -> list[Value]:
    """All keys of values.yaml, in its order, maps before their entries."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, yaml.safe_load(text), text.splitlines(), ""))


def _walk(node: yaml.MappingNode, loaded: dict[str, object], lines: list[str], prefix: str) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        default = loaded[key.value]
        descends = isinstance(value, yaml.MappingNode) and isinstance(default, dict) and not value.flow_style
        is_alone = lines[key.start_mark.line].lstrip().startswith(key.value)
        yield Value(path, default, _comment(lines, key.start_mark.line) if is_alone else "", not descends)
        if descends:
            assert isinstance(value, yaml.MappingNode)
            assert isinstance(default, dict)
            yield from _walk(value, default, lines, f"{path}.")


def _comment(lines: list[str], line: int) -> str:
    above = lines[line - 1].strip() if line else ""
    return above.removeprefix(_MARK) if above.startswith(_MARK) else ""


def _table() -> str:
    rows = ["| value | default | what it does |", "| --- | --- | --- |"]
    for value in values():
        if value.text:
            text = value.text.replace("|", "\\|").replace("<", "\\<")
            rows.append(f"| `{value.path}` | {_shown(value.default)} | {text} |")
    return "\n".join(rows) + "\n"


def _shown(default: object) -> str:
    return "" if default == "" else f"`{json.dumps(default)}`".replace("|", "\\|")


def _sets() -> str:
    rows = ["| file | what it is |", "| --- | --- |"]
    sets = sorted(VALUE_SETS.glob("*.yaml"))
    rows += [f"| [ci/{path.name}](ci/{path.name}) | {_purpose(path)} |" for path in sets]
    return "\n".join(rows) + "\n"


def _purpose(path: Path) -> str:
    comments: list[str] = []
    for line in path.read_text().splitlines():
        if not line.startswith("# "):
            break
        comments.append(line.removeprefix("# ").strip())
    said = [line for line in comments if not line.startswith("kubectl ")]
    return " ".join(said)


def main() -> None:
    """Write all of it."""
    for copy, origin in COPIES.items():
        copy.write_bytes(origin.read_bytes())
    README.write_text(page())


if __name__ == "__main__":
    main()
