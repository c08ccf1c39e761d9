"""The log: its format, names and manifest, and the only code that writes manifests.

record, names, folder                         a record; names of objects; the folder of a partition
codec, avro                                   compressed blocks of Avro
record_encoder, record_decoder                records in blocks, written and read
arrow, arrow_headers, arrow_numbers           blocks as Arrow columns
segment, assembly, waiting_records            a segment as it is written, and records that wait for their block
rewrite, objects                              segments merged, and objects uploaded
index, index_pages                            the index of a segment: Parquet, and its pages
manifest, manifest_codec, manifest_schema     the manifest as a value and as bytes
edits, edits_replica, gaps                    changes of a manifest, as pure functions
commit, partition_log, catalog                commits with fencing; one partition; all partitions of a directory
replica_log, replica_first_copy               the log of a replica
gc                                            which objects may be deleted, and their deletion
"""
