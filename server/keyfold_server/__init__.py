"""`keyfold serve`: answers by key over HTTP, and read-only pages about the logs of a bucket.

    cli        the command
    app        the ASGI application; `keyfold.http_server` runs it
    lookups    the lookups of all topics that were asked for, each refreshed when it is old
    keys       the endpoints that answer by key
    health     probes and metrics
    metrics    the table of the metrics, and their values
    figures    what a page tells of a topic, from manifests
    pages      the pages: topics, a topic's map, a key, records at an offset
    html       the frame of a page, and tables

The server writes nothing, so any number of them can run for one bucket.
"""
