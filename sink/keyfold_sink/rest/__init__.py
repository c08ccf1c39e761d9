"""The sink's REST API: Kafka Connect's for one connector, and what Connect lacks.

    addresses   what `listeners` says, and who needs a token
    sockets     bind them; which worker this is
    server      uvicorn in a thread, between `serve` and its end
    protocol    patience with clients, and its end
    guard       who may ask: Host, Origin, token, size
    app         all of it as one ASGI application
    connectors, offsets, plugins, loggers, health    the endpoints, by Connect's resources
    backend     what the endpoints stand on
    shapes      what answers look like
    views       answers made of what the service says
    errors      one shape for every error
    document    the OpenAPI document

Everything is asked of a `Service` (`keyfold_sink.service`) on the server's own threads. The supervisor's loop waits for
none of it.
"""
