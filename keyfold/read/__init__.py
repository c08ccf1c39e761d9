"""Readers of a log: in order, following it, and as latest state.

log                              `open_log` and `Log`, what users of the library call
selection, position              which segments need not be opened; whether a reader may go on in a newer version
segment_reader, index_parts, blocks  the wanted records of one segment, through its index
batches, records, ordered        Arrow batches and records in offset order
follow                           waits for new records
latest, latest_keys, key_hash    the last record of each key, in bounded memory
lookup, key_directory            the records of a key
fetch                            an object, with errors that name the partition
"""
