"""Metrics of every service: one type that declares a metric, one for its samples, one adapter for Prometheus.

metric        a metric, its samples, and values that become samples
prometheus    a table of metrics as a collector of Prometheus' client

Each service has a table of its metrics (`keyfold_sink.metrics.names`, `keyfold_compactor.report.metric_names`,
`keyfold_replicator.status.metric_names`, `keyfold.table.metrics`, `keyfold_server.metrics`) and computes their values.
`keyfold.runtime.metrics_server` serves them.
"""
