"""One task: its main loop, reports, commands, backpressure and flushes.

run             build a task from its options, and run it
sink_task       the main loop
reading         pass batches of the consumer to the partitions' writers
backpressure    keep the task within `buffer.memory`
flushing        commit what was read, and wait for it
commands        the commands of the supervisor
report          status and gauges
startup_retry   retry at startup until the store and Kafka answer
catching_up     when a task with `--until-caught-up` may end
background      calls on other threads, and timers
time_limits     intervals and time-outs
"""
