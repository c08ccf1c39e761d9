"""Which column a format makes, and what must be known of all the data before the first array is made.

A reader's schema is the type, for Avro and JSON alike. Without one all the data is read first:

    avro    the ids of the writer schemas. If there is one, it is the reader's schema too. Of several, the one with the
            highest id is, the newest of the registry; GUIDs have no order, and need a reader's schema.
    json    `keyfold.formats.json_type` finds what the values have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfold.formats.arrow_types import NoArrowType
from keyfold.formats.avro_schema import Primitive, Type
from keyfold.formats.columns import Column
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.handlers import HANDLERS, TypeSurvey, schema_needed
from keyfold.formats.schema_archive import SchemaArchive


def survey_for(part: RecordPart, kind: Format, reader: Type | None) -> TypeSurvey | None:
    """Return the survey that is needed before `column_for`; None if the type is known."""
    survey = HANDLERS[kind].survey
    return None if reader is not None or survey is None else survey(part)


def surveyed_type(surveys: Sequence[TypeSurvey], schemas: SchemaArchive, part: RecordPart) -> Type:
    """Return the type for all the data that was surveyed. Raise `ConfigError` if a reader's schema is needed."""
    if not surveys:
        return Primitive("bytes")
    first, *others = surveys
    for other in others:
        first.merge(other)
    return first.type(schemas, part)


def column_for(part: RecordPart, kind: Format, schemas: SchemaArchive, reader: Type | None) -> Column:
    """Return the column of a format; `reader` is the type of Avro's and JSON's. Raise `ConfigError`."""
    try:
        return HANDLERS[kind].column(part, schemas, reader)
    except NoArrowType as error:
        raise schema_needed(part, str(error)) from error
