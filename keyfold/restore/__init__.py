"""A log back into a Kafka topic: every record once, wherever the process or a broker dies.

    selection   which records: whole log, up to an offset or a time, the latest state          pure
    source      these records of one partition, in windows that are known before they are read
    window      which source offsets land from which target offset on                          pure
    journal     windows in the bucket, each created before its first record is produced; the plan
    lease       one run at a time
    hazards     what the target would refuse, drop or change                                   pure
    survey      what hazards need to know of the source, from manifests and indexes
    target      the topic: found, compared or made; its end; records of it; a channel into it
    partition   one partition: recover, plan a window, produce it, again
    run         all partitions: checks, plan, threads, report
    offsets     offsets of consumer groups, translated by the journal

Why it neither repeats nor loses a record. A partition has one producer at a time, idempotent and without gaps, so what
has landed is always a prefix of what was sent. A window is written down (create-only, so two runs cannot both do it)
before it is produced, and says: these source offsets, in this order, from this target offset on. After a death the end
of the target says how many of them landed; the last of them are compared with the source. No transactions: a reader of
uncommitted records never sees a record that does not stay.
"""
