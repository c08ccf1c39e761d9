"""Store schemas beside the log, so that the log can be read without its registry.

    <topics.dir>/_schemas/<id>.avsc       the complete writer schema of that id

A schema with references is stored with the referenced schemas written into it. A schema without references is stored as
it was registered, byte for byte. Objects are created and never replaced. An id stands for one schema per registry, so
one `topics.dir` belongs to one registry. If the id already has another schema, the partition fails: records of both
schemas would look alike, and no reader could tell them apart.
"""

from __future__ import annotations

from typing import Any

from keyfold.errors import AlreadyExists, ObjectNotFound, ObjectTooLarge, StoreError, StoreUnavailable
from keyfold.log.names import schema_key
from keyfold.store.api import Create, ObjectStore
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json
from keyfold_sink.validate.convert.registry_api import SchemaKey


class SchemaConflict(StoreError):
    """The object of this id contains another schema."""


class SchemaArchiveWriter:
    """The folder of schemas of one `topics.dir`. Thread-safe; calls wait for the store."""

    def __init__(self, store: ObjectStore, topics_dir: str) -> None:
        self._store = store
        self._topics_dir = topics_dir

    def keep(self, key: SchemaKey, text: str, url: str) -> None:
        """Store a schema from the registry at `url`, if it is missing. A call may be repeated.

        Raise `SchemaConflict`, or the store's errors. After a `retriable` error the call can be repeated.
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
            raise StoreUnavailable(name, "existed a moment ago and does not exist now") from error
        if found != text.encode() and not _same_json(found, text):
            raise SchemaConflict(
                name,
                f"contains another schema than {url} has with id {key}: this `topics.dir` belongs to another registry",
                hint="set another `topics.dir` for topics with schemas of this registry",
            )


def _same_json(found: bytes, text: str) -> bool:
    """Whether two texts are the same JSON: versions of registries may format the same schema differently."""
    try:
        return bool(_parsed(found) == _parsed(text))
    except (ValueError, RecursionError):
        return False


def _parsed(text: bytes | str) -> Any:
    return load_json(text)
