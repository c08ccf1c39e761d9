"""Execution of a compaction: reading, mapping, rewriting, committing.

run, passes             a run over all partitions, and one pass over one
claims                  one compactor per partition
mapping, offset_map     the last offset of every key
large_map               the same, where it does not fit into memory
rewrite                 a new segment from old ones
work, local             what is executed where, and the execution in this process
replica_holds           what replicas still need
"""
