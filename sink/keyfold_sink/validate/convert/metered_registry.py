"""A count of what a Schema Registry answers, for a task's metrics. Schemas from a cache are not counted.

It is a module of its own because a task without a converter of Avro must not load the client of a registry.
"""

from __future__ import annotations

from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.validate.convert.registry_api import (
    RegisteredSchema,
    RegistryRefused,
    RegistryUnavailable,
    SchemaKey,
    SchemaRegistry,
    SchemaUnknown,
)


class MeteredRegistry:
    """A `SchemaRegistry` wrapper that counts answers for a task's metrics. Thread-safe."""

    def __init__(self, inner: SchemaRegistry, meter: TaskMeter) -> None:
        self.url = inner.url
        self._inner = inner
        self._meter = meter

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        """See `SchemaRegistry.schema`."""
        result = "failed"
        try:
            found = self._inner.schema(key)
            result = "found"
        except SchemaUnknown:
            result = "unknown"
            raise
        except RegistryUnavailable:
            result = "unavailable"
            raise
        except RegistryRefused:
            result = "refused"
            raise
        finally:
            self._meter.count(names.SCHEMA_LOOKUPS, result)
        return found

    def close(self) -> None:
        """See `SchemaRegistry.close`."""
        self._inner.close()
