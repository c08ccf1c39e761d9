"""The logs in a bucket: topics and partitions, listed by their folders."""

from __future__ import annotations

from collections.abc import Iterator

from keyfold.log.names import Place, partition_of_folder, topic_folder, topic_of_folder
from keyfold.store.api import ObjectStore


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
