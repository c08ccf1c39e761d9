"""A replica: a log of its own in another bucket that takes over whole versions of the source, newest first.

    cli          the commands and their output, and the round after a run of the compactor
    promotion    which side is the source: switch-over, fail-over, fail-back
    rounds       a round for one partition, and the scheduling of rounds
    copy         copying objects between the buckets
    status       the status, for people and for Prometheus
    registry     registrations, a replica's permissions, and opening both sides
    state        the state of one partition, as values

Each package imports only those below it; `copy` and `status` do not import each other.
"""
