"""Sessions of botocore, which share one description of AWS's services."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from botocore.loaders import Loader, create_loader
from botocore.session import Session
from botocore.utils import parse_timestamp

# What the store takes from answers that are mostly headers. To look for all forty takes an eighth of the CPU of a read.
_MEMBERS: Final = ("Body", "ContentLength", "ContentRange", "ETag", "LastModified")


def open_session(
    *,
    profile: str | None,
    access_key_id: str | None,
    secret_access_key: str | None,
    session_token: str | None,
    region: str | None,
) -> Session:
    """Return a session. For None, boto3's sources apply: environment, profile, instance role."""
    session = Session(profile=profile)
    session.register_component("data_loader", _service_models())
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_time)
    if access_key_id or secret_access_key or session_token:
        # The configuration refuses one of the two keys without the other.
        session.set_credentials(access_key_id or "", secret_access_key or "", session_token)
    # botocore reads AWS_DEFAULT_REGION; the other SDKs, and so most deployments, AWS_REGION.
    if region := region or os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    return session


def configured_endpoint(session: Session) -> str | None:
    """Return the endpoint of the environment (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`) or profile; None: Amazon's."""
    host = urlsplit(url := str(session.create_client("s3").meta.endpoint_url)).hostname or ""
    return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else url


def parse_time(text: str) -> datetime:
    """Return the time of an answer as botocore does, whose own parser takes half of the CPU of a listing."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError):
            found = parse(text)
            if found.tzinfo is not None:
                return found
    return parse_timestamp(text)


@cache
def _service_models() -> Loader:
    """Return the descriptions of AWS's services. Each session would read and parse this megabyte of JSON anew."""
    loader = create_loader()
    shapes = loader.load_service_model("s3", "service-2")["shapes"]  # the loader keeps it
    for name in ("GetObjectOutput", "HeadObjectOutput", "PutObjectOutput"):
        members = shapes[name]["members"]
        shapes[name]["members"] = {member: members[member] for member in _MEMBERS if member in members}
    return loader
