"""The writer schemas that the sink keeps beside the log: `<topics.dir>/_schemas/<id>.avsc`.

An object of this folder is created once and never replaced, so what was read is kept for as long as the reader lives.
"""

from __future__ import annotations

import json
from threading import Lock
from typing import Any

from keyfold.errors import ObjectNotFound, ObjectTooLarge, StoreError
from keyfold.formats.format_mismatch import Misfit, SchemaKey
from keyfold.formats.schema_bounds import SCHEMA_BYTES_MAX
from keyfold.log.names import SCHEMAS_FOLDER, schema_key
from keyfold.store.api import ObjectStore

_SUFFIX = ".avsc"


class SchemaUnusable(StoreError):
    """A kept object holds no Avro schema."""


class KeptSchemas:
    """The schemas of one topics.dir. Safe to use from several threads."""

    def __init__(self, store: ObjectStore, topics_dir: str) -> None:
        self._store = store
        self._topics_dir = topics_dir
        self._texts: dict[SchemaKey, str] = {}
        self._lock = Lock()

    def name(self, key: SchemaKey) -> str:
        """Return the key of the object that holds a schema."""
        return schema_key(self._topics_dir, key)

    def text(self, key: SchemaKey) -> str:
        """The schema as it is kept, in one piece. Raises `Misfit` where none is kept under `key`, and `StoreError`."""
        with self._lock:
            found = self._texts.get(key)
            if found is None:
                name = self.name(key)
                try:
                    found = self._texts[key] = self._store.get(name, SCHEMA_BYTES_MAX).data.decode()
                except ObjectNotFound as error:
                    message = f"names schema {key}, which was not kept: `{self._store.url}/{name}` does not exist"
                    raise Misfit(message, schema=key) from error
                except ObjectTooLarge as error:
                    raise SchemaUnusable(name, f"is not a schema: it has more than {SCHEMA_BYTES_MAX} bytes") from error
                except UnicodeDecodeError as error:
                    raise SchemaUnusable(name, "is not UTF-8 text") from error
        return found

    def schema(self, key: SchemaKey) -> Any:
        """The schema as JSON. Raises what `text` does, and `SchemaUnusable`."""
        try:
            return json.loads(self.text(key))
        except RecursionError as error:
            raise SchemaUnusable(self.name(key), "is nested too deeply") from error
        except ValueError as error:
            raise SchemaUnusable(self.name(key), f"is not JSON: {error}") from error

    def keys(self) -> list[SchemaKey]:
        """What is kept: ids ascending, then GUIDs. One listing."""
        prefix = f"{self._topics_dir}/{SCHEMAS_FOLDER}" if self._topics_dir else SCHEMAS_FOLDER
        names = [info.key.removeprefix(prefix) for info in self._store.list(prefix)]
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        ids: list[SchemaKey] = sorted(int(stem) for stem in stems if stem.isdecimal())
        return ids + sorted(stem for stem in stems if not stem.isdecimal())
