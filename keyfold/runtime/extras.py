"""Optional libraries: a failed import names the extra of keyfold that installs the library.

with needs_extra("keyfold.spark", "spark"):
    from pyspark.sql import SparkSession
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keyfold.errors import ExtraMissing


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise `ExtraMissing` if an import in the block fails because of a library that is missing or broken."""
    try:
        yield
    except ImportError as error:
        named = extra_missing(error, what, extra)
        if named is error:
            raise
        raise named from error


def extra_missing(error: ImportError, what: str, extra: str) -> ImportError:
    """Return the error that names the extra. An import of keyfold's own that failed is a bug, and stays what it is."""
    if isinstance(error, ExtraMissing):
        return ExtraMissing(what, extra, error.reason)
    if (error.name or "").startswith("keyfold"):
        return error
    return ExtraMissing(what, extra, str(error))
