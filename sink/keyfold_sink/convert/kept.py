"""Schemas beside the log, so that an archive outlives its registry.

    <topics.dir>/_schemas/<id>.avsc       the writer schema of that id, in one piece

A schema that refers to others is kept with them written into it; one that does not is kept as it was registered, byte
for byte. Objects are created and never replaced. An id stands for one schema per registry, so one `topics.dir` belongs
to one registry: where another schema already has the id, nothing is written and nothing is read any further. Records
of both would look alike, and no reader could tell which schema is theirs.
"""

from __future__ import annotations

from typing import Any

from keyfold.errors import AlreadyExists, ObjectNotFound, ObjectTooLarge, StoreError, StoreUnavailable
from keyfold.log.names import schema_key
from keyfold.store.api import Create, ObjectStore
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json
from keyfold_sink.convert.registry_api import SchemaKey


class SchemaConflict(StoreError):
    """The object of this id holds another schema."""


class KeptSchemas:
    """The folder of schemas of one `topics.dir`. Calls wait for the store; any thread may make them."""

    def __init__(self, store: ObjectStore, topics_dir: str) -> None:
        self._store = store
        self._topics_dir = topics_dir

    def keep(self, key: SchemaKey, text: str, url: str) -> None:
        """See to it that the schema is there; `url` is the registry that it is from. A call may be repeated.

        Raises `SchemaConflict`, and the store's errors: those that are `retriable` leave nothing half done.
        """
        name = schema_key(self._topics_dir, key)
        try:
            self._store.put(name, text.encode(), Create())
        except AlreadyExists:
            self._require_same(name, key, text, url)

    def _require_same(self, name: str, key: SchemaKey, text: str, url: str) -> None:
        try:
            found = self._store.get(name, DOCUMENT_BYTES_MAX).data
        except ObjectTooLarge:
            found = b""
        except ObjectNotFound as error:
            raise StoreUnavailable(name, "was there a moment ago and is gone") from error
        if found != text.encode() and not _same_json(found, text):
            raise SchemaConflict(
                name,
                f"holds another schema than the one that {url} has under {key}: this topics.dir belongs to another "
                "registry",
                hint="give what comes from this registry a topics.dir of its own",
            )


def _same_json(found: bytes, text: str) -> bool:
    """Registries of other versions may lay out the same schema in another way."""
    try:
        return bool(_parsed(found) == _parsed(text))
    except (ValueError, RecursionError):
        return False


def _parsed(text: bytes | str) -> Any:
    return load_json(text)
