"""Writer schemas beside the log, so that the log can be read without its registry.

    <topics.dir>/_schemas/<id>.avsc       the complete writer schema of that id

A schema with references is stored with the referenced schemas written into it. A schema without references is stored as
it was registered, byte for byte. An id stands for one schema per registry, so one `topics.dir` belongs to one registry.

Objects are created and never replaced, so a schema that was read is remembered for as long as the reader lives. The
sink adds schemas. If the id already has another schema, it fails: records of both schemas would look alike, and no
reader could tell them apart.
"""

from __future__ import annotations

import json
from threading import Lock

from keyfold.errors import AlreadyExists, ObjectNotFound, ObjectTooLarge, StoreError, StoreUnavailable
from keyfold.formats.errors import FormatMismatch, SchemaKey
from keyfold.formats.schema_bounds import SCHEMA_BYTES_MAX
from keyfold.log.names import SCHEMAS_FOLDER, schema_key
from keyfold.store.api import Create, ObjectStore
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json

_SUFFIX = ".avsc"


class ArchivedSchemaUnusable(StoreError):
    """An object of the archive does not contain an Avro schema."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message, hint="put the schema back, from a version of the object or from a replica")


class SchemaConflict(StoreError):
    """The object of this id contains another schema."""


class SchemaArchive:
    """The schemas of one topics.dir. Thread-safe; calls wait for the store."""

    def __init__(self, store: ObjectStore, topics_dir: str) -> None:
        self._store = store
        self._topics_dir = topics_dir
        self._texts: dict[SchemaKey, str] = {}
        self._lock = Lock()

    def name(self, key: SchemaKey) -> str:
        """Return the key of the object that holds a schema."""
        return schema_key(self._topics_dir, key)

    def text(self, key: SchemaKey) -> str:
        """Return the text of a schema. Raise `FormatMismatch` if the archive has none under `key`, and `StoreError`."""
        with self._lock:
            found = self._texts.get(key)
            if found is None:
                name = self.name(key)
                try:
                    found = self._texts[key] = self._store.get(name, SCHEMA_BYTES_MAX).data.decode()
                except ObjectNotFound as error:
                    message = f"names schema {key}, which was not kept: `{self._store.url}/{name}` does not exist"
                    raise FormatMismatch(message, schema=key) from error
                except ObjectTooLarge as error:
                    raise ArchivedSchemaUnusable(
                        name, f"is not a schema: it has more than {SCHEMA_BYTES_MAX} bytes"
                    ) from error
                except UnicodeDecodeError as error:
                    raise ArchivedSchemaUnusable(name, "is not UTF-8 text") from error
        return found

    def schema(self, key: SchemaKey) -> object:
        """Return a schema as JSON. Raise as `text` does, and `ArchivedSchemaUnusable`."""
        try:
            return json.loads(self.text(key))
        except RecursionError as error:
            raise ArchivedSchemaUnusable(self.name(key), "is nested too deeply") from error
        except ValueError as error:
            raise ArchivedSchemaUnusable(self.name(key), f"is not JSON: {error}") from error

    def keys(self) -> list[SchemaKey]:
        """Return the ids of all schemas, ascending, then the GUIDs. One listing."""
        prefix = f"{self._topics_dir}/{SCHEMAS_FOLDER}" if self._topics_dir else SCHEMAS_FOLDER
        names = [info.key.removeprefix(prefix) for info in self._store.list(prefix)]
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        ids: list[SchemaKey] = sorted(int(stem) for stem in stems if stem.isdecimal())
        return ids + sorted(stem for stem in stems if not stem.isdecimal())

    def add(self, key: SchemaKey, text: str, registry_url: str) -> None:
        """Store a schema of a registry, if it is missing. A call may be repeated.

        Raise `SchemaConflict`, or the store's errors. After a `retriable` error the call can be repeated.
        """
        name = self.name(key)
        try:
            self._store.put(name, text.encode(), Create())
        except AlreadyExists:
            self._require_same(name, key, text, registry_url)

    def _require_same(self, name: str, key: SchemaKey, text: str, registry_url: str) -> None:
        try:
            found = self._store.get(name, DOCUMENT_BYTES_MAX).data
        except ObjectTooLarge:
            found = b""
        except ObjectNotFound as error:
            raise StoreUnavailable(name, "existed a moment ago and does not exist now") from error
        if found != text.encode() and not _same_json(found, text):
            raise SchemaConflict(
                name,
                f"contains another schema than {registry_url} has with id {key}: this `topics.dir` belongs to another "
                "registry",
                hint="set another `topics.dir` for topics with schemas of this registry",
            )


def _same_json(found: bytes, text: str) -> bool:
    """Whether two texts are the same JSON: versions of registries may format the same schema differently."""
    try:
        return bool(load_json(found) == load_json(text))
    except (ValueError, RecursionError):
        return False
