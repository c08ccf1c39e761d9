"""What makes the starts of JVMs and of boto3 cheap, for tests that start thousands of them."""

from __future__ import annotations

import os
from functools import cache

from botocore.loaders import JSONFileLoader

from keyfold_demo.java import QUICK_JVM, default_cache
from tests.support.spark_archive import jvm_option


def submit_options() -> str:
    """Options of a driver's JVM. It lives for seconds or minutes, too short for the second compiler to pay."""
    return f"{QUICK_JVM} {jvm_option(default_cache())}".rstrip()


def start_quickly() -> None:
    """Change this process, and the environment of those that it starts."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", submit_options())
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)
    # Each boto3 session parses a megabyte of JSON, and the files are always the same.
    load_once = staticmethod(cache(JSONFileLoader().load_file))
    JSONFileLoader.load_file = load_once  # type: ignore[method-assign]  # replaced for this test
