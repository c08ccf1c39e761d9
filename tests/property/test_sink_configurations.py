"""Any configuration gets a response in Connect's shape that contains no secret."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.config.config_file import is_secret_key
from keyfold.config.option_fields import entries
from keyfold_sink.config.connect_definitions import infos
from keyfold_sink.config.examine import examine
from keyfold_sink.config.foreign_keys import FOREIGN
from keyfold_sink.config.options import SinkOptions

SECRET = "hunter2-7f3a9c"
KNOWN = sorted({entry.key for entry in entries(SinkOptions)} | set(FOREIGN))
SUB_KEYS = (
    "sasl.password",
    "ssl.key.pem",
    "schema.registry.url",
    "basic.auth.user.info",
    "sasl.jaas.config",
    "fetch.min.bytes",
)

keys = st.one_of(
    st.sampled_from([key for key in KNOWN if not key.endswith("*")]),
    st.builds(
        lambda prefix, own: prefix[:-1] + own,
        st.sampled_from([key for key in KNOWN if key.endswith("*")]),
        st.sampled_from(SUB_KEYS),
    ),
    st.builds(lambda topic, own: f"topic.{topic}.{own}", st.sampled_from(["a", "a.b", ""]), st.sampled_from(KNOWN)),
    st.text(max_size=20),
)
plain = st.one_of(
    st.sampled_from(
        ["", "1", "-1", "0", "true", "false", "none", "all", "bytes", "avro", "json", "a,b", "a,a", "SSL", "["]
    ),
    st.text(max_size=20),
    st.integers().map(str),
)
secret = st.sampled_from(
    ["${env:SECRET}", "x${env:SECRET}y", "${env:SECRET},b", "http://${env:SECRET}/", "${env:GONE}"]
)


def tame(values: dict[str, str]) -> dict[str, str]:
    """Leave out regular expressions that may never end."""
    return {key: value for key, value in values.items() if key != "topics.regex"}


@pytest.mark.sharded
@settings(max_examples=150)
@given(st.dictionaries(keys, st.one_of(plain, secret), max_size=12))
def test_every_configuration_gets_a_response_without_secrets(values: dict[str, str]) -> None:
    written = {
        key: SECRET if is_secret_key(key) and "${" not in value else value for key, value in tame(values).items()
    }
    findings = examine(written, {"SECRET": SECRET})
    assert (findings.options is None) == bool(findings.mistakes)
    answer = infos(findings)
    assert answer["error_count"] == len(findings.mistakes)
    said = json.dumps(answer) + "".join(map(str, findings.mistakes)) + "".join(note.text for note in findings.notes)
    assert SECRET not in said
    if findings.options is not None:
        assert SECRET not in repr(findings.options.shown())


@given(st.dictionaries(keys, plain, max_size=6))
def test_a_shown_configuration_equals_the_given_one(values: dict[str, str]) -> None:
    base = {"name": "users", "bootstrap.servers": "h:1", "topics": "users", "s3.bucket.name": "log"}
    options = SinkOptions.examine({**base, **tame(values)}).options
    if options is not None:
        assert options.means_the_same(options.shown())
