"""Restore of a log into a Kafka topic: every record exactly once, even if the process or a broker dies.

    selection       the records to restore: whole log, up to an offset or a time, the latest state pure
    source          these records of one partition, in windows that are known before they are read
    window          the source offsets that land from a target offset on                           pure
    journal         windows in the bucket, each created before its first record is produced; the plan
    lease           one run at a time
    hazards         records that the target would refuse, drop or change                           pure
    source_survey   data about the source for hazards, from manifests and indexes
    target          the topic: found, compared or made; its end; records of it; a channel into it
    partition       one partition: recover, plan a window, produce it, repeat
    run             all partitions: checks, plan, threads, report
    group_offsets   offsets of consumer groups, translated by the journal

Why it neither repeats nor loses a record. A partition has one producer at a time, idempotent and without gaps, so what
has landed is always a prefix of what was sent. A window is written down (create-only, so two runs cannot both do it)
before it is produced, and says: these source offsets, in this order, from this target offset on. After a death the end
of the target says how many of them landed; the last of them are compared with the source. No transactions: a reader of
uncommitted records never sees a record that does not stay.
"""
