"""The sink's metrics, from the counters of its tasks to Prometheus.

names              the table of all metrics, and those of the sink's own
connect_names      the metrics that Kafka Connect also has
definitions        names of Connect's metrics and of the sink's own
meter              the counters of one task
recent             rates, means and maxima over the last minute
metered_store      count and time the calls to the store
partition_figures  metrics computed from the partitions' statuses
worker_figures     all samples of one worker, from its tasks' reports
collector          the worker's metrics as Prometheus collects them
"""
