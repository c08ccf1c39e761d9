"""The replica: a log of its own in another bucket that takes newest versions of the source, in full or not at all.

    cli         the commands, and what they print
    promotion   who is the source: switch-over, fail-over, fail-back
    rounds      what a round does for one partition, and who does how many of them when
    carriage    bytes from one bucket into the other           seen    how it stands, for people and for Prometheus
    desk        what was asked of a replica, and what its bucket allows: documents, and both sides opened by them
    standing    how one partition stands, as values

Each room imports only what is below it.
"""
