"""The JSON of requests and responses: Connect's names and nesting, and keyfold's for endpoints that Connect lacks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from keyfold_sink.status import RunState

Values = dict[str, str | bool | int | float | None]
"""A configuration in a request. Values are strings; numbers and booleans are converted to strings."""

_Config = Annotated[
    dict[str, str],
    Field(description="The configuration as written; secrets are [hidden], placeholders are not resolved."),
]


class ServerInfo(BaseModel):
    """The worker that answered."""

    version: str = Field(description="keyfold's version.")
    commit: str = Field(description="A field of Connect; in keyfold, the same as `version`.")
    kafka_cluster_id: str = Field(description="Kafka's cluster id; empty while Kafka does not answer.")


class HealthReport(BaseModel):
    """The result of a health check."""

    status: str = Field(description="healthy or unhealthy; alive or not alive; ready or not ready.")
    message: str
    error_code: int | None = Field(None, description="The HTTP status of a failed check.")


class TaskId(BaseModel):
    """A task of the connector."""

    connector: str
    task: int = Field(description="The slot of the task's worker * tasks.max + the task's number in that worker.")


class ConnectorInfo(BaseModel):
    """The connector: its configuration and its tasks."""

    name: str
    config: _Config
    tasks: list[TaskId]
    type: str = Field("sink", description="Always `sink`.")


class TaskInfo(BaseModel):
    """A task and its configuration."""

    id: TaskId
    config: _Config


class ConnectorState(BaseModel):
    """The connector as a whole."""

    state: RunState = Field(description="PAUSED or STOPPED if requested; otherwise the best state of any task.")
    worker_id: str
    trace: str | None = Field(None, description="Why no task works.")


class TaskState(BaseModel):
    """One task. RUNNING: the task has reported within seconds, and a partition makes progress or none has lag."""

    id: int
    state: RunState
    worker_id: str
    trace: str | None = Field(
        None, description="Why the task does not run, or which partitions of a running task make no progress and why."
    )


class ConnectorStatus(BaseModel):
    """State of the connector and of each task, over all workers."""

    name: str
    connector: ConnectorState
    tasks: list[TaskState]
    type: str = Field("sink", description="Always `sink`.")


class Expanded(BaseModel):
    """The parts that `expand` requested."""

    status: ConnectorStatus | None = None
    info: ConnectorInfo | None = None


class ConnectorTopics(BaseModel):
    """The topics of the connector."""

    topics: list[str]


class PartitionDetails(BaseModel):
    """One partition as its task reports it. null: unknown or none."""

    topic: str
    partition: int
    state: RunState
    next_offset: int | None = Field(description="The log's end: all records before this offset are durable.")
    position: int | None = Field(description="The next offset to read from Kafka.")
    end_offset: int | None = Field(description="The topic's end offset that the task saw last.")
    lag: int | None = Field(description="end_offset - next_offset: records that are not durable yet.")
    oldest_record_age_ms: int | None = Field(
        description="Age of the oldest record that was read and is not durable yet."
    )
    buffered_records: int | None = Field(description="Records that were read and are not durable yet.")
    next_roll_ms: int | None = Field(
        description="When the open segment is finished at the latest, by segment.ms (ms since the epoch)."
    )
    last_commit_ms: int | None = Field(description="Time of the last commit to the log (ms since the epoch).")
    error: str | None = Field(description="The last error.")
    error_ms: int | None = Field(description="Time of the last error (ms since the epoch).")
    blocked_since_ms: int | None = Field(
        description="Since when the task has retried because of the error (ms since the epoch). A partition with lag "
        "that is not blocked makes progress."
    )
    worker_id: str | None
    task: int | None


class Partitions(BaseModel):
    """The partitions of all tasks of all workers, and on request those without a task."""

    partitions: list[PartitionDetails]


class KafkaPartition(BaseModel):
    """Connect's name for a partition of a topic."""

    kafka_topic: str
    kafka_partition: int


class KafkaOffset(BaseModel):
    """Connect's name for an offset."""

    kafka_offset: int


class ConnectorOffset(BaseModel):
    """The end of one partition's log."""

    partition: KafkaPartition
    offset: KafkaOffset


class ConnectorOffsets(BaseModel):
    """The end of each partition's log: the next offset to be written."""

    offsets: list[ConnectorOffset]


class Message(BaseModel):
    """The result of a request."""

    message: str


class Plugin(BaseModel):
    """A class that a configuration may name."""

    class_: str = Field(alias="class")
    type: str = Field(description="sink or converter.")
    version: str


class LoggerLevel(BaseModel):
    """A logger's level."""

    level: str = Field(description="OFF, FATAL, ERROR, WARN, INFO, DEBUG or TRACE.")
    last_modified: int | None = Field(description="When this API set the level (ms since the epoch).")


class ConfigKey(BaseModel):
    """The definition of a key."""

    model_config = ConfigDict(extra="allow")

    name: str
    type: str = Field(description="BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS or PASSWORD.")
    required: bool
    default_value: str | None
    importance: str = Field(description="HIGH, MEDIUM or LOW.")
    documentation: str
    group: str | None
    width: str = Field(description="NONE, SHORT, MEDIUM or LONG.")
    display_name: str
    dependents: list[str]
    order: int


class ConfigValue(BaseModel):
    """A key's value and its errors."""

    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(BaseModel):
    """The definition and value of a key."""

    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(BaseModel):
    """A configuration, key by key."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class CreateConnector(BaseModel):
    """A connector to create."""

    name: str | None = Field(None, examples=["users"])
    config: Values = Field(description="Values are strings; numbers and booleans are converted to strings.")
    initial_state: RunState | None = Field(None, description="RUNNING, PAUSED or STOPPED.")


class OffsetsPatch(BaseModel):
    """The new ends of logs. The handler checks each entry, so that errors have Connect's messages."""

    offsets: list[dict[str, object]] | None = Field(
        None,
        examples=[[{"partition": {"kafka_topic": "users", "kafka_partition": 0}, "offset": {"kafka_offset": 42}}]],
    )


class LevelRequest(BaseModel):
    """A level to set."""

    level: str = Field(examples=["DEBUG"], description="OFF, FATAL, ERROR, WARN, INFO, DEBUG or TRACE.")
