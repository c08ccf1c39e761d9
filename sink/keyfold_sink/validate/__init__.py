"""Rejected records: validation of batches, skipped records, and dead letters.

intake          validate a partition's records, and pass them to its writer
rejecting       build the validation of a task from its options
letter          a rejected record, and its dead letter
dead_letters    send dead letters, and wait until Kafka has them
producer        configure the producer, and create the dead letter topic
error_counts    count rejected records as Connect does
"""
