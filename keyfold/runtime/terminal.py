"""Output of commands, with foreign text made harmless.

Keys, reasons, names and errors come from the bucket, from Kafka and over HTTP. A control sequence in such a text could
move the cursor, change earlier output, or send input as if it had been typed. So all output goes through `escaped`:
characters that are not printable become JSON escapes, which are valid inside JSON and readable outside of it.
"""

from __future__ import annotations

import json
import sys


def escaped(text: str) -> str:
    r"""Return `text` as one line without control characters, bidirectional marks or halves of surrogate pairs.

    Tabs stay. Other characters that are not printable are written as JSON writes them: `\n`, `\u001b`.
    """
    if text.replace("\t", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\t" else json.dumps(sign)[1:-1] for sign in text)


def echo(line: str = "", *, err: bool = False, flush: bool = True) -> None:
    """Print one line, escaped, in UTF-8 whatever the terminal's encoding is; `err`: to standard error."""
    stream = sys.stderr if err else sys.stdout
    data = escaped(line).encode() + b"\n"
    if hasattr(stream, "buffer"):
        stream.flush()  # flush earlier text output first
        stream.buffer.write(data)
    else:
        stream.write(data.decode())
    if flush:
        stream.flush()


def echo_json(document: object, *, indent: int | None = None) -> None:
    """Print a JSON document to standard output."""
    for line in json.dumps(document, ensure_ascii=False, indent=indent).split("\n"):
        echo(line)
