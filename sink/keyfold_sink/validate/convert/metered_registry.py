"""A Schema Registry wrapper that counts answers for a task's metrics. Cached schemas are not requested again."""

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
    """A `SchemaRegistry` wrapper. Thread-safe."""

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
