"""The status of a replica, for people and for Prometheus.

status                   reads both sides
assessment, summary      decide each partition's state, and that of the replica
status_report            the report of the process that replicates
status_text              the status as JSON and as text
metric_names, metrics    the metrics
"""
