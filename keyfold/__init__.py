"""keyfold keeps Kafka topics in object storage as a compacted log."""
