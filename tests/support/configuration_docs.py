"""`make docs`: docs/configuration.md is printed from the models, and tests compare.

The tables of docs/migrating-from-connect.md, between their marks, are printed from `keyfold_sink.config.foreign_keys`.

A service whose package is not installed here is left out, never a service that fails to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from keyfold.config.options import Options, markdown_table
from keyfold_sink.config.client_settings import NO_COUNTERPART, OWNED_BY_CONSUMER, OWNED_BY_PRODUCER, SAME_AS
from keyfold_sink.config.foreign_keys import AIVEN, CONFLUENT, CONNECT, Foreign, Never, Same

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
MIGRATING: Final = PAGE.with_name("migrating-from-connect.md")
COMMAND: Final = "make docs"

_SERVICES: Final = (
    ("The sink", "keyfold_sink.config.options", "SinkOptions", "`keyfold sink run CONFIG`"),
    ("The compactor", "keyfold_compactor.options", "CompactOptions", "`keyfold compact run CONFIG`"),
    ("The replicator", "keyfold_replicator.registry.run_options", "RunOptions", "`keyfold replica run CONFIG`"),
    (
        "A replica",
        "keyfold.replicas.options",
        "ReplicaOptions",
        "`keyfold replica add SOURCE NAME --to URL --set KEY=VALUE`; stored in the source's bucket, without secrets",
    ),
)

_HEAD: Final = f"""# Configuration

<!-- Printed from the code by `{COMMAND}`; edit the models, not this page. -->

A configuration file has the form of Kafka Connect's: JSON (`{{"name": ..., "config": {{...}}}}`, or the flat map) or
`.properties`. Keys have Connect's names, and Kafka's for the settings of a log. An unknown key, a wrong type or a
contradiction is an error that names the key.

* **Secrets**: `${{env:VARIABLE}}` and `${{file:/path/to.properties:key}}` are filled in at the start. Messages do not
  repeat their values.
* **One topic**: keys marked *per topic* may be given as `topic.<name>.<key>`.
* **Precedence**: the topic's own value, the general value, for keys marked *followed* the topic's setting in Kafka, the
  default.
* A key that ends in `.*` stands for all keys with that prefix.
* `keyfold sink validate CONFIG` lists every mistake. With `--connect` it also tries the brokers, topics, bucket and
  registry that CONFIG names.
* Keys of Confluent's and Aiven's S3 sinks: [migrating-from-connect.md](migrating-from-connect.md).
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, module, name, command in _SERVICES:
        if find_spec(module) is not None:
            model: type[Options] = getattr(import_module(module), name)
            parts.append(f"## {title}\n\n{command}\n\n{markdown_table(model)}")
    return "\n".join(parts)


def migrating(text: str) -> str:
    """The page about other sinks, with its tables as the code has them."""
    for name, keys in (("confluent", CONFLUENT), ("aiven", AIVEN), ("connect", CONNECT)):
        text = _between(text, name, _foreign_table(keys))
    return _between(text, "clients", _client_table())


def _client_table() -> str:
    owned = [
        (f"{prefix}.override.{key}", f"**refused**: {why}")
        for prefix, keys in (("consumer", OWNED_BY_CONSUMER), ("producer", OWNED_BY_PRODUCER))
        for key, why in keys.items()
    ]
    same = [(key, f"read as `{ours}`") for key, ours in SAME_AS.items()]
    none = [(key, f"**refused**: {why}. Instead: {hint}") for key, (why, hint) in NO_COUNTERPART.items()]
    return _table([*same, *none, *owned])


def _foreign_table(keys: Mapping[str, Foreign]) -> str:
    return _table([(key, _what_becomes_of(known)) for key, known in keys.items()])


def _table(rows: Iterable[tuple[str, str]]) -> str:
    plain = str.maketrans({"|": "\\|", "<": "\\<"})
    lines = [f"| `{key}` | {text.translate(plain)} |" for key, text in rows]
    return "\n".join(["\n| key | here |", "| --- | --- |", *lines]) + "\n\n"


def _between(text: str, name: str, table: str) -> str:
    """The text with what is between the marks of `name` replaced."""
    begin, end = f"<!-- {name}: printed by `{COMMAND}` -->\n", f"<!-- end of {name} -->"
    head, found, rest = text.partition(begin)
    assert found, f"{MIGRATING.name} has no mark for {name}"
    return head + begin + table + end + rest.partition(end)[2]


def _what_becomes_of(known: Foreign) -> str:
    if isinstance(known, Same):
        text = f"read as `{known.ours}`" + (f": {known.note}" if known.note else "")
    elif isinstance(known, Never):
        off = [f"`{value}`" for value in known.off if value]
        text = f"**refused**{f' unless {_or(off)}' if off else ''}: {known.reason}. Instead: {known.hint}"
    elif known.accepted:
        good = [f"`{value}`" for value in known.accepted if value and "." not in value]
        text = f"{_or(good)} is accepted{f': {known.note}' if known.note else ''}. Other values are **refused**: "
        text += f"{known.refusal}. Instead: {known.hint}"
    else:
        text = f"accepted, without effect: {known.note}"
    return text


def _or(values: list[str]) -> str:
    return " or ".join(values)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    MIGRATING.write_text(migrating(MIGRATING.read_text(encoding="utf-8")), encoding="utf-8")
