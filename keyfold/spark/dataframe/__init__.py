"""A log as a DataFrame: `read_log` and `latest_state`.

read_log, latest_state                   the two functions
snapshot_pins, paths                     one version of each partition; which engine reads it
scan, scan_jvm, scan_tasks               the engines: Spark's own Avro reader, and keyfold's in Python tasks
value_formats, typed_columns             typed keys and values
avro_columns, avro_tasks                 Avro keys and values, with the JVM and in Python tasks
snapshot_lost                            Spark's error about a deleted object as `SnapshotLost`
"""
