"""One table of formats: every place that names them has the same ones."""

from typing import get_args

import pytest
from click.testing import CliRunner

from keyfold.cli.cat import cat
from keyfold.formats.format import FORMAT_NAMES, FORMATS, FORMATS_WITH_SCHEMA, Format, FormatInfo, FormatName
from keyfold.formats.handlers import HANDLERS
from keyfold_sink.config.converter_settings import parse_converter
from tests.support.convert_cases import checks
from tests.support.root import ROOT

PAGE = (ROOT / "docs" / "converters.md").read_text(encoding="utf-8")
SETTINGS = {Format.AVRO: {"schema.registry.url": "http://registry"}}


def test_every_format_has_a_row_a_handler_and_a_name_for_type_checkers() -> None:
    assert list(FORMATS) == list(Format)
    assert set(HANDLERS) == set(Format)
    assert get_args(FormatName) == FORMAT_NAMES


@pytest.mark.parametrize("info", FORMATS.values(), ids=FORMAT_NAMES)
def test_the_sink_and_the_documentation_know_every_format(info: FormatInfo) -> None:
    settings = SETTINGS.get(info.format, {})
    for name in (info.format.value, info.converter_class):
        assert parse_converter("value.converter", name, settings).class_name == info.converter_class
    if info.format not in SETTINGS:
        assert (checks(value=info.format.value) is None) == (info.format is Format.BYTES), "bytes alone are unchecked"
    assert f"| `{info.format}` | `{info.converter_class}` | {info.accepts} |" in PAGE
    for page in ("export.md", "reading-spark.md"):
        assert f"\n| `{info.format}` |" in (ROOT / "docs" / page).read_text(encoding="utf-8"), page


def test_commands_offer_every_format() -> None:
    text = CliRunner().invoke(cat, ["--help"]).output
    assert text.count(f"[{'|'.join(FORMAT_NAMES)}]") == 2


def test_spark_has_every_format() -> None:
    pytest.importorskip("pyspark")
    from keyfold.spark.dataframe.typed_columns import EXPRESSIONS
    from keyfold.spark.dataframe.value_formats import Typing

    assert {*EXPRESSIONS, Format.BYTES, Format.AVRO} == set(Format)
    for name in get_args(FormatName):
        schema = "a long" if name in FORMATS_WITH_SCHEMA else None
        assert Typing("value", name, schema).format == name
