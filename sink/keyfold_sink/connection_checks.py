"""`keyfold sink validate --connect`: check what the configuration names, and the sink's rights to it.

    Kafka       a broker answers, the topics exist, the sink may read them and the group
    store       the bucket exists, objects may be written, read and listed, conditional writes are honoured
    registry    it answers and accepts the credentials

The log is not touched: the check of the store has objects of its own, and nothing is written to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from keyfold.errors import AccessDenied, BucketMissing, ConditionsIgnored, ConfigError, KeyfoldError, StoreError
from keyfold.runtime.clock import Clock
from keyfold.store.location import open_store
from keyfold.store.probe import probe
from keyfold_sink.config.converter_settings import AvroConverter, parse_converter
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.contact import CLIENT_LOG, BrokerContact
from keyfold_sink.validate.convert.registry import ConfluentRegistry
from keyfold_sink.validate.convert.registry_api import SchemaUnknown

_TIMEOUT_S: Final = 10.0
STORE_TIMEOUT_S: Final = 5.0
_GROUP_LOOKS: Final = 20
_LOOK_AGAIN_S: Final = 0.5
_COORDINATOR_MOVES: Final = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_FETCH_S: Final = 5.0
# Errors of the clients become mistakes. Only what the user's settings make them log goes to the log.
_SILENT: Final[Mapping[str, object]] = MappingProxyType({"log_level": 0, "logger": CLIENT_LOG})
# An id that no registry has given; the answer that it is unknown is a good answer.
_UNUSED_ID: Final = 2**31 - 1


Good = Callable[[str], None]


def check_connections(
    options: SinkOptions,
    clock: Clock,
    random: Random,
    *,
    on_good: Good = lambda _what: None,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[ConfigError]:
    """Try what the sink will need. Yield a mistake of the responsible key for each failure; tell `on_good` the rest.

    `timeout_s` is the timeout of each request to Kafka.
    """
    yield from _kafka(options, clock, on_good, timeout_s)
    yield from _store(options, clock, random, on_good)
    yield from _registry(options, on_good)


def _kafka(options: SinkOptions, clock: Clock, on_good: Good, timeout_s: float) -> Iterator[ConfigError]:
    contact = BrokerContact(clock)
    settings: dict[str, Any] = {**_SILENT, **options.admin_settings, "error_cb": contact.on_error}
    admin = AdminClient(settings)
    try:
        found = admin.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        admin.poll(0)  # this call delivers the brokers' errors
        yield _no_answer(options, error, contact.refusal(), timeout_s)
        return
    on_good(f"Kafka answers at {options.bootstrap_servers}")
    topics = options.choose_topics(found)
    if not topics:
        yield ConfigError("topics.regex", "matches no topic now", hint="topics that are created later are found")
    there = {topic: found[topic].partitions for topic in topics if topic in found and found[topic].error is None}
    for topic in topics:
        if topic not in there:
            yield _topic_mistake(topic, found[topic].error if topic in found else None)
    firsts = {topic: min(numbers) for topic, numbers in there.items() if numbers}
    yield from _reading(options, firsts, on_good, timeout_s)
    dead_letters = options.dead_letter_topic
    if dead_letters:
        on_good(f"the dead letter topic {dead_letters} {'exists' if dead_letters in found else 'does not exist yet'}")


def _no_answer(
    options: SinkOptions, error: KafkaException, refusal: KeyfoldError | None, timeout_s: float
) -> ConfigError:
    if refusal is not None:
        return ConfigError("bootstrap.servers", refusal.message, hint=refusal.hint)
    return ConfigError(
        "bootstrap.servers",
        f"no broker of {options.bootstrap_servers} answered within {timeout_s:g} s: {error.args[0].str()}",
        hint="check hosts and ports, that security.protocol is that of the brokers' listener, that this machine can "
        "reach the brokers, and their advertised.listeners",
    )


def _topic_mistake(topic: str, error: KafkaError | None) -> ConfigError:
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return ConfigError(
            "topics", f"the sink may not describe topic `{topic}`", hint="grant it Read and Describe on the topic"
        )
    return ConfigError(
        "topics",
        f"topic `{topic}` not found, or the sink may not describe it",
        hint="create it, correct the name, or grant the sink Read and Describe on the topic",
    )


def _ask_group(consumer: Consumer, places: list[TopicPartition], timeout_s: float) -> None:
    """Request a group's offsets. Retry for a while if its coordinator is not known yet or moves."""
    for _ in range(_GROUP_LOOKS - 1):
        try:
            consumer.committed(places, timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_MOVES:
                raise
            consumer.poll(_LOOK_AGAIN_S)  # nothing is assigned: it waits
        else:
            return
    consumer.committed(places, timeout=timeout_s)


def _reading(options: SinkOptions, firsts: dict[str, int], on_good: Good, timeout_s: float) -> Iterator[ConfigError]:
    """Ask for the group's offsets and fetch at the end of one partition of each topic: needs what reading needs."""
    settings: dict[str, Any] = {**_SILENT, **options.consumer_settings, "group.id": options.group_id}
    settings |= {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "latest"}
    settings.pop("group.instance.id", None)  # a member of that name may be at work
    places = [TopicPartition(topic, partition, OFFSET_END) for topic, partition in firsts.items()]
    if not places:
        return
    consumer = Consumer(settings)
    try:
        try:
            _ask_group(consumer, places, timeout_s)
        except KafkaException as error:
            yield ConfigError(
                "name",
                f"the offsets of the group {options.group_id} cannot be read: {error.args[0].str()}",
                hint=f"grant the sink Read on the group {options.group_id}",
            )
        consumer.assign(places)
        refused = _refused_topics(consumer, set(firsts))
    finally:
        consumer.close()
    for topic, text in sorted(refused.items()):
        yield ConfigError("topics", f"the sink may not read topic `{topic}`: {text}", hint="grant it Read on the topic")
    if len(refused) < len(firsts):
        on_good(f"{len(firsts) - len(refused)} of {len(firsts)} topics can be read")


def _refused_topics(consumer: Consumer, waiting: set[str]) -> dict[str, str]:
    """Topics whose fetch was refused, within `_FETCH_S`."""
    refused: dict[str, str] = {}
    for _ in range(int(_FETCH_S / 0.1)):
        for message in consumer.consume(100, 0.1):
            said, topic = message.error(), message.topic() or ""
            waiting.discard(topic)
            if said is not None and said.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused[topic] = said.str()
        if not waiting:
            break
    return refused


def _store(options: SinkOptions, clock: Clock, random: Random, on_good: Good) -> Iterator[ConfigError]:
    try:
        store = open_store(options.location)
    except ConfigError as mistake:
        yield mistake
        return
    try:
        probe(store, options.topics_dir, clock, random, retry_timeout_s=STORE_TIMEOUT_S)
        on_good(f"{store.url} can be written and honours conditional writes")
        next(iter(store.list(f"{options.topics_dir}/".lstrip("/"))), None)
        on_good(f"{store.url} can be listed")
    except StoreError as error:
        yield ConfigError(_blamed(error), error.message, hint=error.hint)
    finally:
        store.close()


def _blamed(error: StoreError) -> str:
    if isinstance(error, AccessDenied):
        return "aws.access.key.id"
    if isinstance(error, BucketMissing):
        return "s3.bucket.name"
    return "store.url" if isinstance(error, ConditionsIgnored) or error.retriable else "s3.bucket.name"


def _registry(options: SinkOptions, on_good: Good) -> Iterator[ConfigError]:
    converters = (
        ("key.converter", options.key_converter, options.key_converter_settings),
        ("value.converter", options.value_converter, options.value_converter_settings),
    )
    for key, name, settings in converters:
        converter = parse_converter(key, name, settings)
        if not isinstance(converter, AvroConverter):
            continue
        try:
            registry = ConfluentRegistry(converter.registry)
        except ConfigError as mistake:
            yield mistake
            continue
        try:
            registry.schema(_UNUSED_ID)
        except SchemaUnknown:
            pass
        except KeyfoldError as error:
            yield ConfigError(f"{key}.schema.registry.url", error.message, hint=error.hint)
            continue
        finally:
            registry.close()
        on_good(f"the Schema Registry answers at {registry.url}")
