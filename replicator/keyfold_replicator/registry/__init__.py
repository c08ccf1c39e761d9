"""From a registration to both sides of a replication.

replica_pair       the source and the replica, settings, and the documents that a running replication follows
open_replica       opens the source and the replica of a registration
admission          checks before a replica is registered
registering        registers a replica and enables compaction there, both or neither
compaction_rule    whether a compacted log may be replicated
holds              removes a replica from the source's manifests
run_options        the configuration of `keyfold replica run`
"""
