"""Kafka access of the commands: `restore` writes into a topic, `verify` compares with one.

java_client_keys         keys of the Java clients, as librdkafka has them
settings                 options and files of commands
client, errors           clients that report the brokers' refusals
cluster                  topics, offsets and settings through an admin client
reading                  records of a partition; a topic that `verify` compares with

`errors`, `java_client_keys` and `settings` need no Kafka client. `client`, `cluster` and `reading` do, and are imported
when a command connects to Kafka. Without confluent-kafka, the import raises an error that names the extra `kafka`.
"""
