"""Prove that a log is whole, compare it with Kafka, and repair a lost manifest.

partition, round, segment              verify one partition: its pieces, and one segment
row_checks, key_rules, key_hashes      checks of rows, and of keys after compaction
segment_totals, segment_cover          what segments must add up to
segment_survey, repair, repair_version which objects exist, and a new manifest from them
compare, compare_rules                 compare with the topic in Kafka
findings, messages, diagnosis          what was found, as values and as text
"""
