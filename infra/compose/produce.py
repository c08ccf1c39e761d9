"""Write records of a few keys into the topic `users`, some of them deletions: `produce.py [HOW_MANY]`."""

# ruff: noqa: INP001 - a script, of no package

import json
import os
import random
import sys

from confluent_kafka import Producer

KEYS = 200
DELETED_SHARE = 0.05


def main(count: int, chance: random.Random) -> None:
    """Write `count` records and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "linger.ms": 50})
    for number in range(count):
        key = f"user-{chance.randrange(KEYS)}"
        value = json.dumps({"visits": number, "city": chance.choice(["Berlin", "Paris", "Porto"])})
        producer.produce("users", key=key, value=None if chance.random() < DELETED_SHARE else value)
        producer.poll(0)
    left = producer.flush(60)
    if left:
        sys.exit(f"{left} of {count} records were not taken by the broker within 60 s")
    sys.stdout.write(f"{count} records written to users\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000, random.Random())
