"""All targets, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.support.fuzz.compactor_targets import COMPACTOR_TARGETS
from tests.support.fuzz.directory_targets import DIRECTORY_TARGETS
from tests.support.fuzz.document_targets import DOCUMENT_TARGETS
from tests.support.fuzz.log_targets import LOG_TARGETS
from tests.support.fuzz.rest_targets import REST_TARGETS
from tests.support.fuzz.target import Target
from tests.support.fuzz.value_targets import VALUE_TARGETS

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        *LOG_TARGETS,
        *DIRECTORY_TARGETS,
        *VALUE_TARGETS,
        *DOCUMENT_TARGETS,
        *COMPACTOR_TARGETS,
        *REST_TARGETS,
    )
}
