"""Decisions of the compactor: pure functions from values to values.

policy, settings        which partitions are due, in which order, and the settings that apply to each
plan, parts, merge      what a pass reads and writes
work                    what is sent to tasks, and what they answer
retain, horizon         which records stay, and when a tombstone may go
retention               what `retention.ms` and `retention.bytes` remove
min_garbage             segments with too little garbage to be rewritten
batching, single_stage  how work is laid out for Spark
"""
