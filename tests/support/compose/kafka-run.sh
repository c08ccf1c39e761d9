#!/bin/bash
# What the image of Apache Kafka does: server.properties of the variables KAFKA_*, by Kafka's own KafkaDockerWrapper,
# which formats the folder of the log; where that has been formatted before it fails, and that is no failure. Then the
# broker as the first process.
set -eu
export CLUSTER_ID=${CLUSTER_ID:-a2V5Zm9sZC1jb21wb3NlLQ}
said=$(java -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup \
    --default-configs-dir /etc/kafka/docker --mounted-configs-dir /mnt/shared/config \
    --final-configs-dir /opt/kafka/config 2>&1) || grep -q 'already formatted' <<<"$said" || { echo "$said" >&2; exit 1; }
exec java -Xms256m -Xmx1g -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
