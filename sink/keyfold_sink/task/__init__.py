"""One task: its main loop, reports, orders, backpressure and flushes.

run             build a task from its options, and run it
sink_task       the main loop
reading         pass batches of the consumer to the partitions' writers
relief          backpressure: keep the task within `buffer.memory`
flushing        commit what was read, and wait for it
orders          the orders of the supervisor
report, gauges  status and metrics
persistence     retry at startup until the store and Kafka answer
catching_up     when a task with `--until-caught-up` may end
background      calls on other threads, and timers
timings         intervals and time-outs
"""
