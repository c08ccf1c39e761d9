"""A worker: what runs a sink's tasks, and what makes many workers one service.

run             a worker from its options: everything below, put together
supervisor      starts tasks, follows orders, replaces tasks that crash or hang
children        one task: in which state it is, and what becomes of it
spawn, child    its process, seen from here and from inside
orders          what was asked of the sink: one object in the bucket, changed by compare-and-set
roll_call       which workers there are, and what each says of its tasks
sink_service    what REST asks (`keyfold_sink.service.Service`)
ends            where logs end, and moving an end forward because somebody asks for it
"""
