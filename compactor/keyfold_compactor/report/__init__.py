"""Reports of runs, and what is made of them: texts, JSON, metrics, costs, progress.

report, log_state       the report of a run as values, and the cleaning state of each log
progress                stages and steps of a run; runs as events of the log
cost, gain              what cleaning a log would cost, and what it would free
report_text             the report as lines of text
show                    what the command line prints
display                 what a terminal shows during a run
metric_names, metrics    the metrics, computed from reports
run_meter, metrics_*     the metrics of a process, and their export
liveness                signs of life for the probes
"""
