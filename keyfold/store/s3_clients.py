"""The two clients of an S3 store: one configuration, and one description of S3 for all stores of a process."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from botocore import __version__ as botocore_version
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from botocore.session import Session

if TYPE_CHECKING:
    from keyfold.store.s3 import S3Location


def clients(asked: S3Location) -> tuple[S3Location, Any, Any]:
    """Return the location as resolved by boto3, the retrying client, and the single client."""
    session = Session(profile=asked.profile)
    session.register_component("data_loader", _service_models())
    if asked.access_key_id or asked.secret_access_key or asked.session_token:
        # The configuration refuses one of the two keys without the other.
        session.set_credentials(asked.access_key_id or "", asked.secret_access_key or "", asked.session_token)
    # botocore reads AWS_DEFAULT_REGION; the other SDKs, and so most deployments, AWS_REGION.
    if region := asked.region or os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    endpoint_url = asked.endpoint_url or _configured_endpoint(session)
    path_style = endpoint_url is not None if asked.path_style is None else asked.path_style
    common = Config(
        connect_timeout=asked.connect_timeout_s,
        read_timeout=asked.read_timeout_s,
        max_pool_connections=asked.max_connections,
        request_checksum_calculation=asked.checksums,
        response_checksum_validation=asked.checksums,
        s3={"addressing_style": "path" if path_style else "auto"},
        tcp_keepalive=True,
        # botocore builds its own, which tells more, twice for each request: a tenth of the CPU of a small one.
        user_agent=f"keyfold botocore/{botocore_version}",
    )

    def client(mode: Literal["standard", "legacy"], attempts: int) -> Any:
        config = common.merge(Config(retries={"mode": mode, "total_max_attempts": attempts}))
        return session.create_client("s3", endpoint_url=endpoint_url, config=config)

    retrying, single = client("standard", asked.read_attempts), client("standard", 1)
    region = asked.region or retrying.meta.region_name
    return replace(asked, endpoint_url=endpoint_url, region=region), retrying, single


@cache
def _service_models() -> Loader:
    """Return the descriptions of AWS's services. Each session would read and parse this megabyte of JSON anew."""
    return create_loader()


def _configured_endpoint(session: Session) -> str | None:
    """Return the endpoint of the environment (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`) or profile; None: Amazon's."""
    host = urlsplit(url := str(session.create_client("s3").meta.endpoint_url)).hostname or ""
    return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else url
