"""Execution of a compaction: reading, mapping, rewriting, committing. It stands on `decide` and fills a `report`.

run, passes             a run over all partitions, and the passes of one batch
claims                  the claimed partitions of a batch, and their leases
mapping, offset_map     the last offset of every key
large_map               the same, where it does not fit into memory
rewrite                 a new segment from old ones
executor, local         the executor as passes use it, and the one of this process
replica_holds           the replicas that hold tombstones
"""
