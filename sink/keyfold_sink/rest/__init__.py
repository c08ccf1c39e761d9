"""The sink's REST API: Kafka Connect's API for one connector, and the endpoints that Connect lacks.

    sockets                 bind the listeners; choose the worker's id
    server                  the ASGI application, and uvicorn in a thread of its own
    protocol                time limits and connection limits for clients
    wake_detector           detect that this process was suspended
    guard                   checks before every request: Host, Origin, token, size
    connectors, offsets, plugins, loggers, health    the endpoints, by Connect's resources
    backend                 the objects that the endpoints use
    shapes                  the JSON of requests and responses
    status_responses        responses built from the service's status
    errors                  one JSON shape for every error
    document                the OpenAPI document

Every endpoint calls a `SinkControl` (`keyfold_sink.control`) on the server's own threads. The supervisor's loop never
waits for the API.
"""
