"""What the sink's image is for: a sink, and a replicator."""

from __future__ import annotations

from tests.support.images.build import Image
from tests.support.images.stage import RECORDS, Stage, documents, end, kill, run, say, start, status, until


def tell_sink(image: Image, stage: Stage) -> None:
    container = stage.container(image)
    missing = run(container, *image.entrypoint, "sink", "run", "/etc/keyfold/nothing.json", may_fail=True)
    assert missing.returncode == 2
    assert "/etc/keyfold/nothing.json" in missing.stderr
    say("without its configuration the sink says which file is missing")
    log = stage.configurations / "sink.log"
    process = start(container, [*image.entrypoint, "sink", "run", "/etc/keyfold/sink.json", "--json"], log)
    try:
        until("/health/live", lambda: status(f"{stage.rest_url}/health/live") == 200, process, log)
        say("/health/live is 200")
        until("/health/ready", lambda: status(f"{stage.rest_url}/health/ready") == 200, process, log)
        say("/health/ready is 200")
        listing = [*image.entrypoint, "log", "list", "s3://log/topics", "--json"]
        until("all records", lambda: records(run(container, *listing).stdout) == RECORDS, process, log)
        say(f"{RECORDS} records are in the log")
        assert end(process) == 0
    finally:
        kill(process)
    say("SIGTERM to the first process of its namespace ends it with exit code 0")
    run(container, *image.entrypoint, "replica", "add", "s3://log/topics", "dr", "--to", "s3://log-dr/topics")
    run(container, *image.entrypoint, "replica", "run", "/etc/keyfold/replica.json", "--once")
    run(container, *image.entrypoint, "replica", "status", "s3://log/topics", "dr", "--check")
    say("the replicator carries the log to another bucket")


def records(printed: str) -> int:
    return sum(int(each["next_offset"]) for each in documents(printed))
