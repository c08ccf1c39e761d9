"""`make docs`: docs/configuration.md is printed from the models, and a test compares.

A service whose package is not installed here is left out, never a service that fails to import.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from keyfold.options import Options, markdown_table

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
COMMAND: Final = "make docs"

_SERVICES: Final = (
    ("The sink", "keyfold_sink.options", "SinkOptions", "`keyfold sink run CONFIG`"),
    ("The compactor", "keyfold_compactor.options", "CompactOptions", "`keyfold compact run CONFIG`"),
)

_HEAD: Final = f"""# Configuration

<!-- Printed from the code by `{COMMAND}`; edit the models, not this page. -->

A configuration is Kafka Connect's: JSON (`{{"name": ..., "config": {{...}}}}`, or the flat map) or `.properties`. Names
are Connect's, and Kafka's for what the log does. An unknown key, a wrong type or a contradiction is an error that names
the key.

* **Secrets**: `${{env:VARIABLE}}` and `${{file:/path/to.properties:key}}` are filled in at the start; messages do not
  repeat them.
* **One topic**: keys marked *per topic* may be given as `topic.<name>.<key>`.
* **Who wins**: the topic's own value, the general value, what is *followed* from the topic's settings in Kafka, the
  default.
* A key that ends in `.*` passes on all keys with that prefix.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, module, name, command in _SERVICES:
        if find_spec(module) is not None:
            model: type[Options] = getattr(import_module(module), name)
            parts.append(f"## {title}\n\n{command}\n\n{markdown_table(model)}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
