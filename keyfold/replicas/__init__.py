"""The replicas of a log: their registrations in its bucket, and what each replica's bucket allows.

documents    the two documents, as values
registry     reads and changes the documents
options      the keys of a registration
after_run    the round of all replicas after a run of the compactor, which the replicator provides
"""
