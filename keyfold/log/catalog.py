"""The logs in a bucket: topics and partitions, listed by their folders."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Final

from keyfold.log.names import Place, partition_of_folder, topic_folder, topic_of_folder
from keyfold.store.api import ObjectStore

_NAMES_SEARCHED: Final = 1000  # a page of a listing: a suggestion costs one request


def topics(store: ObjectStore, topics_dir: str) -> list[str]:
    """Topics that have a folder below `topics_dir`, in name order."""
    prefix = f"{topics_dir}/" if topics_dir else ""
    found = (topic_of_folder(folder) for folder in store.list_folders(prefix))
    return sorted(topic for topic in found if topic is not None)


def partitions(store: ObjectStore, topics_dir: str, topic: str) -> list[int]:
    """Partitions that have a folder in the topic's, ascending."""
    prefix = f"{topics_dir}/{topic_folder(topic)}/" if topics_dir else f"{topic_folder(topic)}/"
    found = (partition_of_folder(folder) for folder in store.list_folders(prefix))
    return sorted(partition for partition in found if partition is not None)


def places(store: ObjectStore, topics_dir: str) -> Iterator[Place]:
    """Every partition of every topic below `topics_dir`."""
    for topic in topics(store, topics_dir):
        for partition in partitions(store, topics_dir, topic):
            yield Place(topics_dir, topic, partition)


def topic_near(store: ObjectStore, topics_dir: str, topic: str) -> str | None:
    """Return the topic whose name is closest to a name that was not found, or None if there is none like it."""
    prefix = f"{topics_dir}/" if topics_dir else ""
    folders = islice(store.list_folders(prefix), _NAMES_SEARCHED)
    names = [name for folder in folders if (name := topic_of_folder(folder)) is not None and name != topic]
    close = get_close_matches(topic, names, n=1)
    return close[0] if close else None


def logs_near(store: ObjectStore, topics_dir: str) -> str | None:
    """Return another directory that has logs, if one of the first objects below `topics_dir` is part of a log."""
    prefix = f"{topics_dir}/" if topics_dir else ""
    for found in islice(store.list(prefix), _NAMES_SEARCHED):
        parts = found.key.split("/")
        for at in range(1, len(parts) - 1):
            is_log = partition_of_folder(parts[at]) is not None and topic_of_folder(parts[at - 1]) is not None
            if is_log and (near := "/".join(parts[: at - 1])) != topics_dir:
                return near
    return None
