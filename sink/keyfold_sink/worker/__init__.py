"""A worker: the supervisor of a sink's tasks, and the state that all workers of a sink share.

run                 build a worker from its options
supervisor          start tasks, follow the desired state, replace tasks that crash or hang
task_process        the state machine of one task
spawn, task_main    a task's process, from the supervisor's side and from its own
wire                messages between a supervisor and its tasks
desired_state       the sink's desired state: one object in the bucket, changed by compare-and-swap
worker_registry     the status objects of all workers
sink_service        the service behind the REST API (`keyfold_sink.control.SinkControl`)
log_end_offsets     read the log end offsets, and move them forward on request
"""
