"""What the body of a request must be before a handler sees it: JSON, in UTF-8."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from fastapi import Depends, Request

from keyfold.http_server import errors


async def _json_body(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise errors.RequestRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the request body must be JSON; set Content-Type: application/json"
        )
    try:
        json.dumps(json.loads(await request.body()), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Python's JSON parser accepts half of a surrogate pair as a character, and no response can contain it.
        raise errors.bad_request("the request body contains half of a surrogate pair, which is not UTF-8") from None
    except RecursionError:
        raise errors.bad_request("the request body is nested too deeply") from None
    except ValueError:
        pass  # FastAPI reports invalid JSON itself


JSON_BODY: Final = Depends(_json_body)
"""The dependency of every handler with a request body: the body must be JSON in UTF-8."""
