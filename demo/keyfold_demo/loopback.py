"""Keep requests to this machine off an HTTP proxy that the environment names.

boto3, urllib, requests, httpx and the AWS SDK of the JVM send requests to any address through `HTTP_PROXY`
(`HTTPS_PROXY`, `ALL_PROXY`), loopback too, unless `NO_PROXY` names it. A proxy cannot reach the servers that the demo
and the tests start here. All other addresses keep their proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_EXCEPTIONS: Final = ("NO_PROXY", "no_proxy")


def without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make clients reach loopback directly: none where no proxy is set.

    Both spellings get the same value, for some clients read only one of them. What they exclude already stays excluded.
    """
    if not any(environ.get(name) or environ.get(name.lower()) for name in _PROXIES):
        return {}
    given = [host.strip() for name in _EXCEPTIONS for host in environ.get(name, "").split(",")]
    excluded = ",".join(dict.fromkeys(host for host in (*given, *LOOPBACK) if host))
    return dict.fromkeys(_EXCEPTIONS, "*" if "*" in given else excluded)
