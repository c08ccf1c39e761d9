"""A replica: a log of its own in another bucket that takes over whole versions of the source, newest first.

    cli         the commands and their output
    promotion   which side is the source: switch-over, fail-over, fail-back
    rounds      a round for one partition, and the scheduling of rounds
    carriage    copying objects between the buckets        seen    the status, for people and for Prometheus
    desk        registrations, a replica's permissions, and opening both sides
    standing    the state of one partition, as values

Each package imports only those below it.
"""
