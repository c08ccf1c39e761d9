"""A worker: the supervisor of a sink's tasks, and the state that all workers of a sink share.

run             build a worker from its options
supervisor      start tasks, follow the desired state, replace tasks that crash or hang
children        the state machine of one task
spawn, child    a task's process, from the supervisor's side and from its own
orders          the sink's desired state: one object in the bucket, changed by compare-and-swap
roll_call       the worker registry: the status objects of all workers
sink_service    the service behind the REST API (`keyfold_sink.service.Service`)
ends            the log end offsets, and moving them forward on request
"""
