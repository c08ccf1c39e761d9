"""`keyfold compact` where no Spark is needed: plans, exit codes, wrong configuration, the cost of an idle run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location
from tests.support import compact_command
from tests.support.cleaning import Sink, object_names, record
from tests.support.keyfold_here import here
from tests.support.moto import Fault, LocalS3Process
from tests.support.tiers import Sharded

config = partial(compact_command.config, spark_master=compact_command.NO_SPARK)


def keyfold(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from keyfold.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def fill(location: S3Location, partition: int = 0) -> Place:
    place = Place("topics", "users", partition)
    store = location.open()
    try:
        sink = Sink.open(store, place, clock=SystemClock())
        sink.append([record(0, "a", "1"), record(1, "a", "2"), record(2, "b", None)])
    finally:
        store.close()
    return place


def test_a_plan_explains_why_each_log_is_due_or_not(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    fill(location, 1)
    settings = {"min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "3600000"}
    done = here("compact", "plan", config(tmp_path, location, min_cleanable_dirty_ratio="0"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clean [0, 3): dirty ratio above min.cleanable.dirty.ratio") == 2
    done = here("compact", "plan", config(tmp_path, location, **settings), "--json", "--partition", "1")
    (found,) = json.loads(done.stdout)["partitions"]
    assert (found["will_clean"], found["partition"]) == (False, 1)
    assert "younger than min.compaction.lag.ms" in found["why_not"]


def test_a_lost_manifest_exits_with_1_and_changes_nothing(tmp_path: Path, location: S3Location) -> None:
    place = fill(location)
    store = location.open()
    store.delete(place.manifest_key)
    names = object_names(store, place)
    for command in (("run", "--once"), ("plan",)):
        done = here("compact", command[0], config(tmp_path, location), *command[1:])
        assert done.returncode == 1
        printed = done.stderr if command[0] == "run" else done.stdout
        told = [line for line in printed.splitlines() if "error: " in line]
        assert len(told) == 1
        assert "keyfold log repair" in told[0]
    assert object_names(store, place) == names
    store.close()


def test_an_idle_run_starts_no_spark(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    path = config(tmp_path, location, min_cleanable_dirty_ratio="1")
    begun = time.monotonic()
    done = keyfold("compact", "run", path, "--once", "--json")
    took_s = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["partitions"] == [], "and Spark's master does not even exist"
    print(f"process and all: {took_s:.2f} s")


def test_occasional_store_errors_do_not_end_a_run(
    tmp_path: Path, location: S3Location, local_s3: LocalS3Process, sharded: Sharded
) -> None:
    """One refused write of each stage of the probe, and 5 % of everything."""
    fill(location)
    path = config(tmp_path, location, min_cleanable_dirty_ratio="1")
    busy = Fault(r"", 503, times=-1, chance=0.05)
    for seed in sharded(range(5)):
        local_s3.set_faults(*(Fault(r"^PUT .*_probe/", 503, skip=n) for n in (1, 4, 9)), busy, seed=seed)
        done = here("compact", "run", path, "--once")
        assert done.returncode == 0, done.stderr
        assert local_s3.struck()[:3] == [1, 1, 1]


def test_a_store_without_conditional_writes_is_refused_despite_occasional_errors(
    tmp_path: Path, location: S3Location, local_s3: LocalS3Process
) -> None:
    fill(location)
    # A store that has it the wrong way round: a create of a new name is answered with 412.
    local_s3.set_faults(Fault(r"^PUT .*_probe/", 503, times=2), Fault(r"^PUT .*_probe/", 412, times=-1))
    done = here("compact", "run", config(tmp_path, location), "--once")
    assert done.returncode != 0
    assert "conditional writes" in done.stderr
    assert local_s3.struck()[0] == 2


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("min_cleanable_dirty_ration", "0", "did you mean"),
        ("min_cleanable_dirty_ratio", "2", "at most"),
        ("cleanup_policy", "shred", "compact, delete or both"),
        ("min_compaction_lag_ms", "-1", "at least"),
        ("log_cleaner_io_max_bytes_per_second", "0", "more than"),
        ("topics_regex", ".*", "are both set"),
    ],
)
def test_an_unknown_key_is_reported_before_anything_happens(
    tmp_path: Path, location: S3Location, key: str, value: str, word: str
) -> None:
    done = here("compact", "run", config(tmp_path, location, **{key: value}), "--once")
    assert done.returncode == 2
    assert key.replace("_", ".") in done.stderr
    assert word in done.stderr


def test_a_topic_that_is_not_configured_is_refused(tmp_path: Path, location: S3Location) -> None:
    done = here("compact", "run", config(tmp_path, location), "--once", "--topic", "orders")
    assert done.returncode == 2
    assert "does not include topic `orders`" in done.stderr


def test_per_topic_values_override_general_ones_which_override_kafkas() -> None:
    from keyfold_compactor.options import CompactOptions

    options = CompactOptions.parse(
        {"s3.bucket.name": "b", "delete.retention.ms": "5", "topic.users.delete.retention.ms": "7"}
    )
    followed = {"cleanup.policy": "compact", "delete.retention.ms": "9", "min.compaction.lag.ms": "11", "other": "x"}
    users, orders = options.settings_of("users", followed), options.settings_of("orders", followed)
    assert (users.compact, users.delete_retention_ms, orders.delete_retention_ms) == (True, 7, 5)
    assert (users.min_compaction_lag_ms, options.settings_of("x", {}).compact) == (11, False)


def test_the_idle_path_imports_neither_spark_nor_arrow() -> None:
    modules = "keyfold_compactor.cli, keyfold_compactor.job, keyfold_compactor.options, keyfold_compactor.report.show"
    code = f"import sys, {modules}; print([m for m in ('pyspark', 'pyarrow', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_configured_codecs_are_those_of_the_log_format() -> None:
    from typing import get_args

    from keyfold.config.option_fields import Codec
    from keyfold.log.codec import CODECS

    assert get_args(Codec) == CODECS


def test_the_module_runs_as_a_spark_submit_script(tmp_path: Path, location: S3Location) -> None:
    """A script's own folder comes first on sys.path: no module of ours may hide another's."""
    import keyfold_compactor

    fill(location)
    script = Path(str(keyfold_compactor.__file__)).with_name("__main__.py")
    command = [sys.executable, str(script), "plan", config(tmp_path, location)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "users-0" in done.stdout
