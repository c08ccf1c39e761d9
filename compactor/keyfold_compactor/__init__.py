"""The compactor: a Spark job that cleans logs in object storage as Kafka cleans a compacted topic.

decide                  pure decisions: what is due, what stays, what is rewritten
options                 the configuration
report                  what a run reports: values, texts, metrics
execute                 a run: read, claim, map, rewrite, commit
spark                   the executor on Spark
job                     one run, or runs in a loop
replicating             a round of replication after each run
table_syncs             syncs of Iceberg tables after each run
cli                     `keyfold compact`
"""
