"""The sink's REST API: Kafka Connect's API for one connector, and the endpoints that Connect lacks.

    server                  the ASGI application; `keyfold.http_server` runs it
    connectors, offsets, plugins, loggers, health    the endpoints, by Connect's resources
    backend                 the objects that the endpoints use
    shapes                  the JSON of requests and responses
    status_responses        responses built from the service's status
    document                the OpenAPI document

Every endpoint calls a `SinkControl` (`keyfold_sink.control`) on the server's own threads. The supervisor's loop never
waits for the API.
"""
