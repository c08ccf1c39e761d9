"""Fuzzing of every decoder that reads the bucket, Kafka or HTTP.

mutate           how bytes, text and JSON are changed, by a seeded `random.Random` alone
target           what a target is: seeds, mutators, a decode function, and the errors that it may raise
log_targets, value_targets, document_targets, compactor_targets, rest_targets
targets          the table of all of them
cases            one case and many: made, decoded, reported
bounded_run      many cases in a process with a bound on memory and a net of time
reach            the lines of each decoder that a sample of cases reaches
__main__         repeats one case, or runs some: `python -m tests.support.fuzz <target> --seed 1 --case 17`
"""
