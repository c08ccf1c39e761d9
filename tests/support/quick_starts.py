"""What makes the starts of JVMs and of boto3 cheap, for tests that start thousands of them."""

from __future__ import annotations

import os
from functools import cache

from botocore.loaders import JSONFileLoader, Loader

from keyfold_demo.java import QUICK_JVM


def start_quickly() -> None:
    """Change this process, and the environment of those that it starts."""
    # A JVM that Spark starts for a test lives for seconds or minutes, too short for the second compiler to pay.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)
    # Each boto3 session parses a megabyte of JSON, and the files are always the same.
    load_once = staticmethod(cache(JSONFileLoader().load_file))
    JSONFileLoader.load_file = load_once  # type: ignore[method-assign]  # replaced for this test
    # It also looks for a model of S3 in the folders of all services, which takes as long as the rest of its start.
    list_services, listed = Loader.list_available_services, dict[tuple[str, ...], list[str]]()

    def list_once(loader: Loader, type_name: str) -> list[str]:
        key = (type_name, *loader.search_paths)
        if key not in listed:
            listed[key] = list_services(loader, type_name)
        return listed[key]

    Loader.list_available_services = list_once  # type: ignore[assignment, method-assign]  # replaced for this test
