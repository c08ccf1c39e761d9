"""Kafka access of the commands: `restore` writes into a topic, `verify` compares with one.

`errors`, `client_keys` and `settings` need no Kafka client. `client`, `cluster` and `reading` do, and are imported when
a command connects to Kafka. Without confluent-kafka, the import raises an error that names the package to install.
"""
