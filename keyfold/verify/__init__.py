"""Prove that a log is whole, compare it with Kafka, and repair a lost manifest.

partition, round, segment              verify one partition: its pieces, and one segment
row_checks, key_rules, key_hashes      checks of rows, and of keys after compaction
segment_totals                         what segments must add up to
segment_survey                         which objects exist
repair, repair_version, surviving_segments  a new manifest, from an older version or from the segments
compare, compare_rules                 compare with the topic in Kafka
findings, messages, diagnosis          what was found, as values and as text
"""
