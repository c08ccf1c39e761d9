"""An HTTP server in a thread of a longer-lived process: the sink's REST API, and `keyfold serve`.

    server           uvicorn in a thread of its own
    protocol         time limits and connection limits for clients
    wake_detector    detect that this process was suspended
    guard            checks before every request: Host, Origin, token, size
    errors           one JSON shape for every error
    json_body        the check of a request's body

`keyfold.runtime.listeners` and `keyfold.runtime.sockets` say where it listens, without a web framework.
"""

from keyfold.runtime.extras import needs_extra

with needs_extra("keyfold.http_server", "serve"):
    import fastapi  # noqa: F401 - the error names the extra
    import uvicorn  # noqa: F401 - as above
