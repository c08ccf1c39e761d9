"""`keyfold serve`: answers by key, and pages about the logs of a bucket, over HTTP."""

from __future__ import annotations

import resource
from pathlib import Path

import click

from keyfold.cli.context import world_of
from keyfold.cli.log_options import json_option, url_argument
from keyfold.cli.output import dumps
from keyfold.cli.typed import key_format_option, value_format_option
from keyfold.errors import ConfigError
from keyfold.runtime.extras import needs_extra
from keyfold.runtime.terminal import echo

DEFAULT_LISTENER = "http://127.0.0.1:8090"


@click.command(short_help="Answer by key over HTTP, and show logs in a browser.")
@url_argument
@click.option(
    "--listen",
    "listeners",
    multiple=True,
    default=(DEFAULT_LISTENER,),
    show_default=True,
    metavar="URL",
    help="Listen on this address, such as http://0.0.0.0:8090; can be repeated. Port 0 is any free port. An address "
    "that other machines can reach requires --token-file. For TLS, use a proxy.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token that requests must have: `Authorization: Bearer TOKEN`, or as a browser's password.",
)
@click.option("--host-name", help="Without a token: a name in `Host` to answer to, besides those of loopback.")
@key_format_option
@value_format_option
@click.option(
    "--refresh-ms",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Look for newer records when an answer would be older than this.",
)
@click.option(
    "--directory-bytes",
    type=click.IntRange(min=1),
    default=1024 * 1024 * 1024,
    show_default=True,
    help="Memory for the directories of keys, 8 bytes a record. Beyond it, the topic that was not asked for the "
    "longest is forgotten.",
)
@json_option
@click.pass_context
def serve(
    ctx: click.Context,
    url: str,
    listeners: tuple[str, ...],
    token_file: Path | None,
    host_name: str | None,
    *,
    key_format: str,
    value_format: str,
    refresh_ms: int,
    directory_bytes: int,
    as_json: bool,
) -> None:
    """Answer by key, and show the logs under URL as pages, until the command is stopped. It writes nothing.

    The first request for a topic reads the indexes of its segments, from the newest on, as far as it looks. After that
    an answer is one small read. docs/serve.md has the endpoints.

    \b
    Examples:
        keyfold serve s3://bucket/topics
        curl http://127.0.0.1:8090/topics/users/keys/user-42
        keyfold serve s3://bucket/topics --listen http://0.0.0.0:8090 --token-file token --value-format avro
    """  # noqa: D301 - click wants the character
    with needs_extra("`keyfold serve`", "serve"):
        from keyfold.http_server.server import running
        from keyfold_server.app import CONNECTIONS, LIMITS, NAMES, make_app
    from keyfold.http_server.wake_detector import WakeDetector
    from keyfold.log import catalog
    from keyfold.runtime.event_log import configure
    from keyfold.runtime.listeners import parse_listeners, require_token
    from keyfold.runtime.signals import stop_or_end_on_signals
    from keyfold.runtime.sockets import listening
    from keyfold.store.location import location_of, parse_url
    from keyfold_server.keys import ServerBackend
    from keyfold_server.lookups import TopicLookups

    token = None if token_file is None else _token(token_file)
    require_token(parse_listeners(listeners, NAMES), token, NAMES)
    configure(json=as_json, level="info")
    clock = world_of(ctx).clock
    location, topics_dir = location_of(url).adjusted(max_connections=CONNECTIONS), parse_url(url)[1]
    store = location.open(None)
    ctx.call_on_close(getattr(store, "close", None) or (lambda: None))
    catalog.topics(store, topics_dir)  # a bucket that cannot be listed is an error now, not of the first request
    lookups = TopicLookups(store, topics_dir, clock, refresh_s=refresh_ms / 1000, memory_bytes=directory_bytes)
    backend = ServerBackend(lookups, {"key_format": key_format, "value_format": value_format})
    own_hosts = () if host_name is None else (host_name,)
    app, detector = make_app(backend, clock, token=token, own_hosts=own_hosts), WakeDetector(clock)
    _allow_sockets(2 * LIMITS.connections_max)
    stop = stop_or_end_on_signals()
    with listening(listeners, NAMES) as sockets, running(app, sockets, detector, LIMITS):
        for address in sockets.addresses:
            echo(dumps({"listening": str(address)}) if as_json else f"listening on {address}")
        stop.wait()


def _allow_sockets(wanted: int) -> None:
    """Raise the limit of open files as far as the process may: each client has a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError("--token-file", f"{path} is not ASCII") from error
