"""Kafka as a log's commands use it: `restore` writes into a topic, `verify` compares with one.

`errors`, `client_keys` and `settings` need no Kafka client. `client`, `cluster` and `reading` do, and are imported when
a command really speaks with Kafka: where confluent-kafka is not installed, the import says what to install.
"""
