"""Keys of other S3 sinks, and how this sink handles them: data. `config.aliases` applies it, the docs print it.

There are three kinds of keys. `Same`: this sink has the key under another name. `Anyway`: the sink always does what the
key asks for, so the key is accepted and has no effect; other values are refused. `Never`: the key is refused, except
for values that switch it off. Sources: the connectors' own configuration classes and documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Same:
    """A key of this sink under another name. `off`: values that mean "not set"; `note`: the difference."""

    ours: str
    note: str = ""
    off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Anyway:
    """A key without effect. `accepted`: the values that are accepted, in any case; empty: all. `note`: the reason."""

    note: str
    accepted: tuple[str, ...] = ()
    refusal: str = ""
    hint: str = ""

    def accepts(self, value: str) -> bool:
        """Return whether a value asks for what the sink does anyway."""
        return not self.accepted or value.strip().lower() in {good.lower() for good in self.accepted}


@dataclass(frozen=True, slots=True)
class Never:
    """A key that is refused, with the reason and what to do. `off`: values that are accepted, as the empty one is."""

    reason: str
    hint: str
    off: tuple[str, ...] = ()


Foreign = Same | Anyway | Never

_MINUS: Final = ("", "-1", "0")


def _classes(*names: str) -> tuple[str, ...]:
    """Return the full and the simple names of classes."""
    return (*names, *(name.rpartition(".")[2] for name in names))


_FORMATS: Final = "io.confluent.connect.s3.format."
_OTHER_FORMAT: Final = "segments are Avro files with the whole record: key, value, headers, offset, timestamp"
_OTHER_FORMAT_HINT: Final = (
    "remove it; `keyfold log cat --json` and keyfold.open_log (Python) read a log, any Avro reader reads a segment"
)
_AVRO_FORMAT: Final = Anyway(
    "segments are Avro", _classes(_FORMATS + "avro.AvroFormat"), _OTHER_FORMAT, _OTHER_FORMAT_HINT
)
_PARTITIONER: Final = "io.confluent.connect.storage.partitioner."
_ONE_LOG: Final = "each partition is one ordered log, so folders are by partition, never by time or field"
_CREDENTIALS: Final = (
    "the sink uses the credentials of the AWS SDK for Python: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ROLE_ARN with a web "
    "identity token (IRSA), the instance's or the pod's role"
)
_ASSUME_ROLE_HINT: Final = (
    "to assume a role, add role_arn and source_profile (or credential_source) to a profile of ~/.aws/config and set "
    "AWS_PROFILE"
)
_BUFFER: Final = "all partitions of a task share one memory budget: buffer.memory"
_RETRIES: Final = "requests to the store are retried with backoff, without limit"
_NAMES: Final = "the format defines object names, with 20 digits of offset"
_BY_TIME: Final = "only partitioners by time or field use it, and these are refused"
_OTHER_FORMATS_ONLY: Final = "only formats other than Avro use it"
_PROXY: Final = Never(
    "a proxy cannot be set here", "set HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the sink's environment"
)
_BLOCKS: Final = "segments are compressed block by block"

CONFLUENT: Final[Mapping[str, Foreign]] = {
    "rotate.schedule.interval.ms": Same(
        "segment.ms", "counted from a segment's first record, not aligned to the clock", off=_MINUS
    ),
    "rotate.interval.ms": Never(
        "timestamps of records do not end segments: a log is in the order of offsets",
        "set segment.ms, the age at which a segment is finished, even if no more records arrive",
        off=_MINUS,
    ),
    "rotate.file.on.partition.change": Anyway(_BY_TIME),
    "format.class": _AVRO_FORMAT,
    "storage.class": Anyway(
        "the store is S3",
        _classes("io.confluent.connect.s3.storage.S3Storage"),
        "the store is S3 or compatible with it",
        "remove it",
    ),
    "schema.generator.class": Anyway("the log contains the original bytes and needs no schema"),
    "schema.compatibility": Anyway(
        "a change of schema never ends a segment",
        ("", "NONE"),
        "records are not projected onto another schema: the log contains the original bytes",
        "remove it; the Schema Registry checks compatibility when a schema is registered",
    ),
    "partitioner.class": Anyway(
        "folders are by Kafka's partition",
        _classes(_PARTITIONER + "DefaultPartitioner"),
        _ONE_LOG,
        "remove it; readers select by offset or by timestamp (--from-timestamp)",
    ),
    "partition.field.name": Anyway(_BY_TIME),
    "partition.duration.ms": Anyway(_BY_TIME),
    "path.format": Anyway(_BY_TIME),
    "locale": Anyway(_BY_TIME),
    "timezone": Anyway("neither paths nor the ends of segments depend on a calendar"),
    "timestamp.extractor": Anyway(_BY_TIME),
    "timestamp.field": Anyway(_BY_TIME),
    "partitioner.max.open.files": Anyway(_BUFFER),
    "store.kafka.keys": Anyway(
        "every record has its key",
        ("true",),
        "keys cannot be omitted: a log is compacted by key",
        "remove it; if a field must not be stored, its producer should not write it",
    ),
    "store.kafka.headers": Anyway(
        "every record has its headers, unchanged", ("true",), "headers cannot be omitted", "remove it"
    ),
    "keys.format.class": _AVRO_FORMAT,
    "headers.format.class": _AVRO_FORMAT,
    "behavior.on.null.values": Anyway(
        "a null value is a tombstone and is stored with its key and offset",
        ("write",),
        "tombstones are records of the log: without them a deleted key would stay",
        "remove it, or set it to write",
    ),
    "tombstone.encoded.partition": Anyway("tombstones are in the log at their offsets"),
    "report.null.values.to.dlq": Anyway("tombstones are not errors"),
    "s3.part.size": Anyway("parts are 8 MiB, and larger for large segments; " + _BUFFER),
    "s3.elastic.buffer.enable": Anyway(_BUFFER),
    "s3.elastic.buffer.init.capacity": Anyway(_BUFFER),
    "s3.part.retries": Anyway(_RETRIES),
    "s3.retry.backoff.ms": Anyway(_RETRIES),
    "retry.backoff.ms": Anyway(_RETRIES),
    "max.write.duration.ms": Anyway("polls do not wait for the store"),
    "enable.conditional.writes": Anyway(
        "all writes are conditional", ("true",), "exactly-once needs conditional writes", "remove it"
    ),
    "max.files.scan.limit": Anyway("object names are unique"),
    "s3.sse.customer.key": Never(
        "the compactor, Spark and other readers could not read objects with a customer's key (SSE-C)",
        "use s3.ssea.name=aws:kms with s3.sse.kms.key.id, or the bucket's default encryption",
    ),
    "s3.acl.canned": Never(
        "the sink sets no ACL",
        "use the bucket's policy, and its object ownership setting for another account's objects",
    ),
    "s3.object.tagging": Never(
        "objects are not tagged: offsets and counts are in the manifest (`keyfold log describe`)",
        "remove it; use the prefix for costs and lifecycle rules",
        off=("false",),
    ),
    "s3.object.tagging.key.value.pairs": Never("objects are not tagged", "remove it; use the prefix"),
    "s3.object.behavior.on.tagging.error": Anyway("objects are not tagged"),
    "s3.credentials.provider.class": Anyway(
        "the sink uses the same sources of credentials",
        _classes(
            "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        ),
        "the sink cannot run Java's classes; " + _CREDENTIALS,
        "remove it; " + _ASSUME_ROLE_HINT,
    ),
    "s3.credentials.provider.*": Never(
        "the sink cannot run Java's credentials providers; " + _CREDENTIALS, _ASSUME_ROLE_HINT
    ),
    "s3.send.digest": Anyway("checksums are always sent"),
    "s3.http.send.expect.continue": Anyway("the sink sends the header for large bodies only"),
    "s3.wan.mode": Never(
        "transfer acceleration cannot be set here",
        "set s3 = use_accelerate_endpoint = true in a profile of ~/.aws/config, and AWS_PROFILE",
        off=("false",),
    ),
    "s3.proxy.url": _PROXY,
    "s3.proxy.user": _PROXY,
    "s3.proxy.password": _PROXY,
    "s3.compression.type": Anyway(
        "", ("", "none"), _BLOCKS, "remove it; avro.codec sets the codec (zstandard by default)"
    ),
    "s3.compression.level": Anyway(_OTHER_FORMATS_ONLY),
    "parquet.codec": Anyway(_OTHER_FORMATS_ONLY),
    "json.decimal.format": Anyway(_OTHER_FORMATS_ONLY),
    "format.bytearray.extension": Anyway(_OTHER_FORMATS_ONLY),
    "format.bytearray.separator": Anyway(_OTHER_FORMATS_ONLY),
    "s3.schema.partition.affix.type": Anyway("", ("", "NONE"), _ONE_LOG, "remove it; schemas never end a segment"),
    "filename.offset.zero.pad.width": Anyway(_NAMES),
    "directory.delim": Anyway("", ("/",), "folders are separated by a slash", "remove it"),
    "file.delim": Anyway(_NAMES),
    "enhanced.avro.schema.support": Anyway("the log contains the original bytes"),
    "connect.meta.data": Anyway("the log contains the original bytes"),
    "allow.optional.map.keys": Anyway("the log contains the original bytes"),
    "schemas.cache.config": Anyway("value.converter.schemas.cache.size sets the cache of a converter"),
    "schemas.cache.size": Anyway("value.converter.schemas.cache.size sets the cache of a converter"),
    "confluent.license": Anyway("no licence is needed"),
    "confluent.topic.*": Anyway("no licence is needed"),
    "confluent.topic": Anyway("no licence is needed"),
}

AIVEN: Final[Mapping[str, Foreign]] = {
    "aws.s3.bucket.name": Same("s3.bucket.name"),
    "aws.s3.region": Same("s3.region"),
    "aws.s3.endpoint": Same("store.url"),
    "aws.s3.sse.algorithm": Same("s3.ssea.name"),
    "file.max.records": Same("flush.size"),
    "aws.s3.prefix": Never(
        "object names have no prefix other than their folder", "set topics.dir to a separate folder"
    ),
    "file.name.prefix": Never(_NAMES, "set topics.dir to a separate folder"),
    "file.name.template": Never(
        _NAMES + ", and one object per key or per hour is not a log",
        "remove it; `keyfold log files` lists the objects, and the compactor keeps the last record of each key",
    ),
    "file.compression.type": Never(
        _BLOCKS + ", so that any Avro reader can read them",
        "remove it; avro.codec sets the codec (zstandard by default)",
    ),
    "file.name.timestamp.timezone": Anyway(_NAMES),
    "file.name.timestamp.source": Anyway(_NAMES),
    "format.output.type": Anyway("segments are Avro", ("avro",), _OTHER_FORMAT, _OTHER_FORMAT_HINT),
    "format.output.fields": Anyway("the whole record is stored: key, value, headers, offset, timestamp"),
    "format.output.fields.value.encoding": Anyway("bytes are stored unchanged"),
    "format.output.envelope": Anyway("the whole record is stored"),
    "aws.s3.part.size.bytes": Anyway("parts are 8 MiB, and larger for large segments; " + _BUFFER),
    "aws.s3.backoff.delay.ms": Anyway(_RETRIES),
    "aws.s3.backoff.max.delay.ms": Anyway(_RETRIES),
    "aws.s3.backoff.max.retries": Anyway(_RETRIES),
    "kafka.retry.backoff.ms": Anyway(_RETRIES),
    "aws.credentials.provider": Never("the sink cannot run Java's classes; " + _CREDENTIALS, _ASSUME_ROLE_HINT),
    "aws.sts.*": Never(_CREDENTIALS, _ASSUME_ROLE_HINT),
}

_TRANSFORMS: Final = Never(
    "the log contains the original bytes of each record, so that it can be restored and compacted",
    "remove it; transform records when you read them, or with a stream job that writes another topic",
)
_OF_TRANSFORMS: Final = Never("it is a setting of transforms or predicates, which are refused", "remove it")
_WORKERS: Final = Never(
    "it is a key of Connect's worker, not of a connector", "remove it; workers share their state in the bucket"
)

CONNECT: Final[Mapping[str, Foreign]] = {
    "transforms": _TRANSFORMS,
    "transforms.*": _OF_TRANSFORMS,
    "predicates": _TRANSFORMS,
    "predicates.*": _OF_TRANSFORMS,
    "group.id": Never("the consumer group is connect-<name>, as in Connect", "remove it"),
    "plugin.path": _WORKERS,
    "config.storage.topic": _WORKERS,
    "config.storage.replication.factor": _WORKERS,
    "offset.storage.topic": _WORKERS,
    "offset.storage.replication.factor": _WORKERS,
    "offset.storage.partitions": _WORKERS,
    "offset.storage.file.filename": _WORKERS,
    "status.storage.topic": _WORKERS,
    "status.storage.replication.factor": _WORKERS,
    "status.storage.partitions": _WORKERS,
}

FOREIGN: Final[Mapping[str, Foreign]] = {**CONFLUENT, **AIVEN, **CONNECT}
