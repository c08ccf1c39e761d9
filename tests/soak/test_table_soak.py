"""Thirty syncs of two tables beside a sink and a compactor, all killed at random; five engines read each version.

    folder     on moto, tables that are folders; at the end Spark rewrites the files of one of them
    catalog    on versitygw, tables in a SQL catalog

make soak ARGS="tests/soak/test_table_soak.py -s"
KEYFOLD_SYNCS=5 KEYFOLD_SEED=7 make soak ARGS="tests/soak/test_table_soak.py -s"
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from keyfold_demo.s3_endpoint import S3Endpoint
from tests.support.kafka import KafkaBroker
from tests.support.lake import Engines, ReadRows, settings, spark
from tests.support.moto import LocalS3Process
from tests.support.root import ROOT
from tests.support.schema_registry import StubRegistry
from tests.support.storm.traffic import BROKER
from tests.support.table_world import KeptTable, TableWorld
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.kafka, pytest.mark.timeout(7200)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))
SYNCS = int(os.environ.get("KEYFOLD_SYNCS", "30"))
PAGES_TABLE = "s3://lake/tables/users"
(SPARK_BLOCK,) = re.findall(
    r"```python\n(rows = spark.*?)^```", (ROOT / "docs" / "table.md").read_text(), re.DOTALL | re.MULTILINE
)
# A table that is a folder is one of a catalog of the type `hadoop`, whose commits are renames.
REWRITE = """
spark.conf.set("spark.sql.catalog.here", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.here.type", "hadoop")
spark.conf.set("spark.sql.catalog.here.warehouse", "s3://{bucket}")
options = "map('rewrite-all', 'true')"
spark.sql(f"CALL here.system.rewrite_data_files(table => 'tables.users', options => {{options}})").collect()
state = []
"""
OPTIONS = {"users": ("--value-format", "json"), "orders": ("--value-format", "avro")}


@contextmanager
def server_of(kind: str) -> Iterator[S3Endpoint]:
    with Versitygw() if kind == "catalog" else LocalS3Process() as server:
        yield server


def named_tables(kind: str, bucket: str) -> tuple[KeptTable, ...]:
    found = []
    for topic, options in OPTIONS.items():
        folder = f"s3://{bucket}/tables/{topic}"
        where = ("--location", folder) if kind == "catalog" else ()
        name = f"prod.shop.{topic}" if kind == "catalog" else folder
        found.append(KeptTable(topic, name, (*options, *where)))
    return tuple(found)


@pytest.mark.parametrize("kind", ["folder", "catalog"])
@pytest.mark.filterwarnings("ignore")
def test_every_engine_reads_the_latest_state_after_each_of_thirty_syncs(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    random = Random(SEED)
    with ExitStack() as exits:
        server = exits.enter_context(server_of(kind))
        broker = exits.enter_context(KafkaBroker(settings=BROKER, heap_mb=512))
        registry = exits.enter_context(StubRegistry())
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        environ = catalog_environ(server, tmp_path) if kind == "catalog" else {}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads the variables when it is imported
        bucket = server.create_bucket("lake")
        with_spark = exits.enter_context(spark(server, tmp_path))
        engines = {**Engines(server, monkeypatch, tmp_path).all, "Spark": with_spark.read}
        tables = named_tables(kind, bucket)
        world = TableWorld(broker, registry, server, bucket, tmp_path, tables, SEED, environ)
        with world.opened():
            world.await_records()
            for number in range(SYNCS):
                for table in tables:
                    world.sync(table, random)
                    if random.random() < 0.2:
                        world.merge(table, random)
                    check(world, table, engines, f"sync {number}")
                time.sleep(random.uniform(0, 3))
        if kind == "folder":
            with_spark.run(REWRITE.format(bucket=bucket))
        for table in tables:
            world.sync(table)
            check(world, table, engines, "the end")
            world.verify(table)
        if kind == "folder":
            users = tables[0]
            state = [(key, number) for _, _, key, number in world.rows_at(users, world.loaded(users))]
            assert sorted(with_spark.run(SPARK_BLOCK.replace(PAGES_TABLE, users.name))) == sorted(state)
    print(f"\n{kind}: {dict(world.done)}")
    assert {"killed sink", "killed compactor", "killed sync"} <= set(world.done), (
        "each process was killed at least once"
    )


def check(world: TableWorld, table: KeptTable, engines: Mapping[str, ReadRows], when: str) -> None:
    """Compare what each engine reads with the topic at the versions that the table names."""
    loaded = world.loaded(table)
    wanted = world.rows_at(table, loaded)
    assert wanted
    for name, read in engines.items():
        assert sorted(read(loaded)) == wanted, f"{name} reads other rows of {table.topic} at {when}"
    world.check()


def catalog_environ(server: S3Endpoint, folder: Path) -> dict[str, str]:
    """Make a SQL catalog, and return the variables with which pyiceberg finds it."""
    uri = f"sqlite:///{folder}/catalog.db"
    SqlCatalog("prod", uri=uri, **settings(server)).create_namespace("shop")
    names = {
        "type": "sql",
        "uri": uri,
        **{key.replace(".", "__").replace("-", "_"): value for key, value in settings(server).items()},
    }
    return {f"PYICEBERG_CATALOG__PROD__{name.upper()}": value for name, value in names.items()}
