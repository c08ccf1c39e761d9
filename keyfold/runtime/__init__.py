"""What every process needs around its work: time, retries, signals, logging, health and limits of bytes.

clock, retry                 time and retries, given as arguments so that tests decide both
signals                      stopping gracefully when asked to
event_log, log_level         log events, and the level that the command line asks for
terminal, text               text for people
listeners, sockets           addresses to listen on, as users write them
health, metrics_server       probes and `/metrics`
rate_limit, throttle         byte rates
json_types, arrow_types      the types of JSON, and of Arrow's columns
extras                       names the extra that installs a missing library
zstd                         Python's own zstd, or its backport
process_memory               memory allocators, and how often Python looks for reference cycles
overlap                      fetch ahead and send behind
"""
