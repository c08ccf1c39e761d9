"""What a key or a value is taken for."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """The format of a topic's keys or values. Null keys and values are null in every one."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


class Part(StrEnum):
    """Which part of a record."""

    KEY = "key"
    VALUE = "value"

    @property
    def schema_header(self) -> str:
        """The header in which newer serializers may write the schema's id."""
        return f"__{self.value}_schema_id"
