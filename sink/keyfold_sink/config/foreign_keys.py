"""Keys of other S3 sinks, and what becomes of each here: data. `config.aliases` applies it, the docs print it.

A key is one of three things. `Same`: we have it under another name. `Anyway`: what it asks for is what happens here in
any case, so it is accepted and has no effect; values that ask for something else are refused. `Never`: it is refused,
but for values that switch it off. Sources: the connectors' own configuration classes and documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Same:
    """Ours under another name. `off`: values that mean "not set"; `note`: what differs."""

    ours: str
    note: str = ""
    off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Anyway:
    """No effect. `accepted`: the values that ask for what is done, in any case; empty: all. `note` says why."""

    note: str
    accepted: tuple[str, ...] = ()
    refusal: str = ""
    hint: str = ""

    def accepts(self, value: str) -> bool:
        """Whether a value asks for what is done anyway."""
        return not self.accepted or value.strip().lower() in {good.lower() for good in self.accepted}


@dataclass(frozen=True, slots=True)
class Never:
    """Refused with the reason and what to do; `off`: values that ask for nothing, as the empty one does."""

    reason: str
    hint: str
    off: tuple[str, ...] = ()


Foreign = Same | Anyway | Never

_MINUS: Final = ("", "-1", "0")


def _classes(*names: str) -> tuple[str, ...]:
    """Classes by their full and their simple names."""
    return (*names, *(name.rpartition(".")[2] for name in names))


_FORMATS: Final = "io.confluent.connect.s3.format."
_OTHER_FORMAT: Final = "segments are Avro files that hold each record whole: key, value, headers, offset, timestamp"
_OTHER_FORMAT_HINT: Final = (
    "take it out; `keyfold log cat --json` and keyfold.open_log (Python) read a log, any Avro reader reads a segment"
)
_AVRO_FORMAT: Final = Anyway(
    "segments are Avro", _classes(_FORMATS + "avro.AvroFormat"), _OTHER_FORMAT, _OTHER_FORMAT_HINT
)
_PARTITIONER: Final = "io.confluent.connect.storage.partitioner."
_ONE_LOG: Final = "a partition of the topic is one ordered log, so objects lie by partition and never by time or field"
_CREDENTIALS: Final = (
    "credentials come from where the AWS SDK for Python looks: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ROLE_ARN with a web "
    "identity token (IRSA), the instance's or the pod's role"
)
_ASSUME_ROLE_HINT: Final = (
    "to assume a role put role_arn and source_profile (or credential_source) into a profile of ~/.aws/config and set "
    "AWS_PROFILE"
)
_BUFFER: Final = "memory is one budget over all partitions: buffer.memory"
_RETRIES: Final = "a store that fails or is away is asked again, with backoff, for as long as it takes"
_NAMES: Final = "objects have names of their own, with 20 digits of offset"
_BY_TIME: Final = "it belongs to partitioners by time or field, and these are refused"
_OTHER_FORMATS_ONLY: Final = "it belongs to formats other than Avro"
_PROXY: Final = Never(
    "the sink has no key for a proxy", "set HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the sink's environment"
)
_BLOCKS: Final = "segments are compressed by block"

CONFLUENT: Final[Mapping[str, Foreign]] = {
    "rotate.schedule.interval.ms": Same(
        "segment.ms", "counted from a segment's first record, not aligned to the clock", off=_MINUS
    ),
    "rotate.interval.ms": Never(
        "segments are not cut by the records' own timestamps: a log is in the order of offsets, whatever their times",
        "set segment.ms, the age at which a segment is finished by the clock, also when the topic is silent",
        off=_MINUS,
    ),
    "rotate.file.on.partition.change": Anyway(_BY_TIME),
    "format.class": _AVRO_FORMAT,
    "storage.class": Anyway(
        "the store is S3",
        _classes("io.confluent.connect.s3.storage.S3Storage"),
        "the store is S3, or what speaks S3",
        "take it out",
    ),
    "schema.generator.class": Anyway("the log holds original bytes and needs no schema"),
    "schema.compatibility": Anyway(
        "a change of schema never cuts a segment",
        ("", "NONE"),
        "records are not projected onto another schema: the log holds the original bytes",
        "take it out; the Schema Registry checks compatibility when a schema is registered",
    ),
    "partitioner.class": Anyway(
        "objects lie by Kafka's partition",
        _classes(_PARTITIONER + "DefaultPartitioner"),
        _ONE_LOG,
        "take it out; readers choose by offset or by timestamp (--from-timestamp)",
    ),
    "partition.field.name": Anyway(_BY_TIME),
    "partition.duration.ms": Anyway(_BY_TIME),
    "path.format": Anyway(_BY_TIME),
    "locale": Anyway(_BY_TIME),
    "timezone": Anyway("no path and no moment of rotation follows a calendar"),
    "timestamp.extractor": Anyway(_BY_TIME),
    "timestamp.field": Anyway(_BY_TIME),
    "partitioner.max.open.files": Anyway(_BUFFER),
    "store.kafka.keys": Anyway(
        "keys are in every record",
        ("true",),
        "keys cannot be left out: a log is compacted by key",
        "take it out; a field that must not be stored is best removed by whoever produces it",
    ),
    "store.kafka.headers": Anyway(
        "headers are in every record, as they were", ("true",), "headers cannot be left out", "take it out"
    ),
    "keys.format.class": _AVRO_FORMAT,
    "headers.format.class": _AVRO_FORMAT,
    "behavior.on.null.values": Anyway(
        "a null value is a tombstone and is kept, with its key and offset",
        ("write",),
        "tombstones are records of the log: without them a deleted key would live on",
        "take it out, or set it to write",
    ),
    "tombstone.encoded.partition": Anyway("tombstones are in the log, in their place"),
    "report.null.values.to.dlq": Anyway("tombstones are no errors"),
    "s3.part.size": Anyway("parts are 8 MiB and grow with large segments; " + _BUFFER),
    "s3.elastic.buffer.enable": Anyway(_BUFFER),
    "s3.elastic.buffer.init.capacity": Anyway(_BUFFER),
    "s3.part.retries": Anyway(_RETRIES),
    "s3.retry.backoff.ms": Anyway(_RETRIES),
    "retry.backoff.ms": Anyway(_RETRIES),
    "max.write.duration.ms": Anyway("the store is never waited for between two polls"),
    "enable.conditional.writes": Anyway(
        "all writes are conditional", ("true",), "all writes are conditional: exactly-once rests on it", "take it out"
    ),
    "max.files.scan.limit": Anyway("a name is never taken twice"),
    "s3.sse.customer.key": Never(
        "objects under a customer's key (SSE-C) could not be read by the compactor, Spark and other readers",
        "use s3.ssea.name=aws:kms with s3.sse.kms.key.id, or the bucket's default encryption",
    ),
    "s3.acl.canned": Never(
        "the sink sets no ACL", "use the bucket's policy, and its ownership setting for another account's objects"
    ),
    "s3.object.tagging": Never(
        "objects are not tagged: offsets and counts are in the manifest (`keyfold log describe`)",
        "take it out; for costs and life cycles use the prefix",
        off=("false",),
    ),
    "s3.object.tagging.key.value.pairs": Never("objects are not tagged", "take it out; use the prefix"),
    "s3.object.behavior.on.tagging.error": Anyway("objects are not tagged"),
    "s3.credentials.provider.class": Anyway(
        "these are the places where credentials are looked for",
        _classes(
            "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        ),
        "Java's classes cannot run here; " + _CREDENTIALS,
        "take it out; " + _ASSUME_ROLE_HINT,
    ),
    "s3.credentials.provider.*": Never(
        "Java's credentials providers cannot run here; " + _CREDENTIALS, _ASSUME_ROLE_HINT
    ),
    "s3.send.digest": Anyway("checksums are always sent"),
    "s3.http.send.expect.continue": Anyway("a large body waits for the store's consent, a small one does not"),
    "s3.wan.mode": Never(
        "transfer acceleration has no key here",
        "set s3 = use_accelerate_endpoint = true in a profile of ~/.aws/config, and AWS_PROFILE",
        off=("false",),
    ),
    "s3.proxy.url": _PROXY,
    "s3.proxy.user": _PROXY,
    "s3.proxy.password": _PROXY,
    "s3.compression.type": Anyway(
        "", ("", "none"), _BLOCKS, "take it out; avro.codec chooses how (zstandard by default)"
    ),
    "s3.compression.level": Anyway(_OTHER_FORMATS_ONLY),
    "parquet.codec": Anyway(_OTHER_FORMATS_ONLY),
    "json.decimal.format": Anyway(_OTHER_FORMATS_ONLY),
    "format.bytearray.extension": Anyway(_OTHER_FORMATS_ONLY),
    "format.bytearray.separator": Anyway(_OTHER_FORMATS_ONLY),
    "s3.schema.partition.affix.type": Anyway("", ("", "NONE"), _ONE_LOG, "take it out; schemas never cut a segment"),
    "filename.offset.zero.pad.width": Anyway(_NAMES),
    "directory.delim": Anyway("", ("/",), "folders are separated by a slash", "take it out"),
    "file.delim": Anyway(_NAMES),
    "enhanced.avro.schema.support": Anyway("the log holds the original bytes"),
    "connect.meta.data": Anyway("the log holds the original bytes"),
    "allow.optional.map.keys": Anyway("the log holds the original bytes"),
    "schemas.cache.config": Anyway("a converter's cache is value.converter.schemas.cache.size"),
    "schemas.cache.size": Anyway("a converter's cache is value.converter.schemas.cache.size"),
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
        "it is put before names as it is, here objects lie in a folder", "set topics.dir to a folder of its own"
    ),
    "file.name.prefix": Never(_NAMES, "set topics.dir to a folder of its own"),
    "file.name.template": Never(
        _NAMES + ", and one object per key or per hour is no log",
        "take it out; `keyfold log files` lists the objects, the compactor keeps the last record of each key",
    ),
    "file.compression.type": Never(
        _BLOCKS + ", and stay readable for any Avro reader", "take it out; avro.codec chooses (zstandard by default)"
    ),
    "file.name.timestamp.timezone": Anyway(_NAMES),
    "file.name.timestamp.source": Anyway(_NAMES),
    "format.output.type": Anyway("segments are Avro", ("avro",), _OTHER_FORMAT, _OTHER_FORMAT_HINT),
    "format.output.fields": Anyway("a record is kept whole: key, value, headers, offset, timestamp"),
    "format.output.fields.value.encoding": Anyway("bytes are kept as they are"),
    "format.output.envelope": Anyway("a record is kept whole"),
    "aws.s3.part.size.bytes": Anyway("parts are 8 MiB and grow with large segments; " + _BUFFER),
    "aws.s3.backoff.delay.ms": Anyway(_RETRIES),
    "aws.s3.backoff.max.delay.ms": Anyway(_RETRIES),
    "aws.s3.backoff.max.retries": Anyway(_RETRIES),
    "kafka.retry.backoff.ms": Anyway(_RETRIES),
    "aws.credentials.provider": Never("Java's classes cannot run here; " + _CREDENTIALS, _ASSUME_ROLE_HINT),
    "aws.sts.*": Never(_CREDENTIALS, _ASSUME_ROLE_HINT),
}

_ORIGINAL_BYTES: Final = "records are kept byte by byte, as Kafka has them: a log can be restored and compacted"
_TRANSFORMS: Final = Never(
    _ORIGINAL_BYTES + ", which a transformed record could not",
    "take it out; transform when reading, or with a stream job into a topic of its own",
)
_OF_TRANSFORMS: Final = Never("it belongs to transforms or predicates", "take it out")
_WORKERS: Final = Never(
    "it is a key of Connect's worker, not of a connector", "take it out; workers keep what they share in the bucket"
)

CONNECT: Final[Mapping[str, Foreign]] = {
    "transforms": _TRANSFORMS,
    "transforms.*": _OF_TRANSFORMS,
    "predicates": _TRANSFORMS,
    "predicates.*": _OF_TRANSFORMS,
    "group.id": Never("the consumer group is connect-<name>, as in Connect", "take it out"),
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
