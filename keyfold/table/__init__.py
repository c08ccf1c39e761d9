"""The latest state of a topic as an Iceberg table: `keyfold table`.

    types, conform      Iceberg types of Arrow types, how a schema grows, and arrays of an older type in a newer one
    columns, rows       typed columns that follow the schemas of the records, and rows of a table
    file_io, catalog    files of a table in an object store, and a catalog that is a folder of such files
    table               one version of a table: its files, its rows, and the versions of the log that it shows
    difference          which rows to add and which to hide
    data_files          Parquet files of rows, and of positions of hidden rows
    commit              manifests, and the snapshot that makes them visible
    sync                from the newest version of each partition to a snapshot
    follow, metrics     a sync and the upkeep in turn until stopped, and what Prometheus sees of it
    maintain, status    merging, expiring, collecting, dropping; what a table holds
    request, open       options of a table, and its name

A row is identified by its partition and offset, which never change. Nothing is visible before the commit.
"""

from keyfold.runtime.extras import needs_extra

with needs_extra("keyfold.table", "table"):
    import pyiceberg  # noqa: F401 - whoever imports a module of this package learns which extra is missing
