"""Record validation: batches are checked, and rejected records are skipped or fail their partition.

record_validation       validate a partition's records, and pass them to its writer
rejection               build the validation of a task from its options
dead_letter             a rejected record, and its dead letter
dead_letter_topic       send dead letters, and wait until Kafka has them
dead_letter_producer    configure the producer, and create the dead letter topic
error_counts            count rejected records as Connect does
convert                 converters and the Schema Registry
"""
