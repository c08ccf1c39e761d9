"""A storm over the whole of keyfold: sinks, compactor, replicators to two targets, readers, store and broker.

schedule        which action at which moment: a pure function of the seed
traffic         the topics, and records that state where they belong
truth, judge    each partition as Kafka has it, and what a snapshot may be; without keyfold
reading         a process of readers; `plain` reads with boto3 and fastavro alone, `library` with keyfold
compactor       the compactor's job in a process of its own, without Spark
gates           stores that refuse, drop, delay and apply requests late
world, drills   the processes and their roles; switch-over, fail-over and resync
storm           carries all out, calms it, proves what is there
summary         the figures, and which of them must not be zero

`python -m tests.support.storm.plain` must import nothing of keyfold, so this file imports nothing.
"""
