"""What answers look like: Connect's names and nesting, and our own for what Connect lacks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from keyfold_sink.status import State

Values = dict[str, str | bool | int | float | None]
"""A configuration in a request. Values are strings; numbers and booleans are taken as their text."""

_Config = Annotated[
    dict[str, str], Field(description="The configuration as given; secrets are [hidden], placeholders stay as written.")
]


class ServerInfo(BaseModel):
    """The worker that answered."""

    version: str = Field(description="keyfold's version.")
    commit: str = Field(description="Connect's field; keyfold's releases are named by version alone.")
    kafka_cluster_id: str = Field(description="Kafka's cluster id; empty while Kafka does not answer.")


class Health(BaseModel):
    """Whether a worker can be used."""

    status: str = Field(description="healthy or unhealthy; alive or not alive; ready or not ready.")
    message: str
    error_code: int | None = Field(None, description="The HTTP status, where it is an error.")


class TaskId(BaseModel):
    """A task of the connector."""

    connector: str
    task: int = Field(description="slot of its worker * tasks.max + its number in the worker.")


class ConnectorInfo(BaseModel):
    """The connector: its configuration and its tasks."""

    name: str
    config: _Config
    tasks: list[TaskId]
    type: str = Field("sink", description="Always `sink`.")


class TaskInfo(BaseModel):
    """A task and what it runs with."""

    id: TaskId
    config: _Config


class ConnectorState(BaseModel):
    """The connector as a whole."""

    state: State = Field(description="What was asked for; FAILED where RUNNING was asked for and no task works.")
    worker_id: str
    trace: str | None = Field(None, description="Why it has failed.")


class TaskState(BaseModel):
    """One task. RUNNING: it has reported within seconds, and some partition of it moves or none has anything to do."""

    id: int
    state: State
    worker_id: str
    trace: str | None = Field(
        None, description="Why it does not run, or what is in the way although it does; names the partitions."
    )


class ConnectorStatus(BaseModel):
    """State of the connector and of each task, over all workers."""

    name: str
    connector: ConnectorState
    tasks: list[TaskState]
    type: str = Field("sink", description="Always `sink`.")


class Expanded(BaseModel):
    """What `expand` asked for."""

    status: ConnectorStatus | None = None
    info: ConnectorInfo | None = None


class Topics(BaseModel):
    """Topics of the connector."""

    topics: list[str]


class PartitionState(BaseModel):
    """One partition, as the task that has it sees it. null: not known, or none."""

    topic: str
    partition: int
    state: State
    next_offset: int | None = Field(description="Durable: every record before it is in the log.")
    position: int | None = Field(description="The next offset to be read from Kafka.")
    end_offset: int | None = Field(description="The topic's end, as the task saw it last.")
    lag: int | None = Field(description="end_offset - next_offset: what is not durable yet.")
    oldest_record_age_ms: int | None = Field(description="Age of the oldest record that was read and is not durable.")
    last_commit_ms: int | None = Field(description="When the log was committed last (ms since the epoch).")
    error: str | None = Field(description="The last error.")
    error_ms: int | None = Field(description="When it happened (ms since the epoch).")
    blocked_since_ms: int | None = Field(
        description="Since when something has been tried again and again because of it (ms since the epoch); a "
        "partition with lag that is not blocked moves."
    )
    worker_id: str | None
    task: int | None


class Partitions(BaseModel):
    """All partitions that a task has, over all workers."""

    partitions: list[PartitionState]


class KafkaPartition(BaseModel):
    """Connect's name for a partition of a topic."""

    kafka_topic: str
    kafka_partition: int


class KafkaOffset(BaseModel):
    """Connect's name for an offset."""

    kafka_offset: int


class ConnectorOffset(BaseModel):
    """Where one partition's log ends."""

    partition: KafkaPartition
    offset: KafkaOffset


class ConnectorOffsets(BaseModel):
    """Where each partition's log ends: the next offset to be written."""

    offsets: list[ConnectorOffset]


class Message(BaseModel):
    """What was done."""

    message: str


class Plugin(BaseModel):
    """A class that a configuration may name."""

    class_: str = Field(alias="class")
    type: str = Field(description="sink or converter.")
    version: str


class LoggerLevel(BaseModel):
    """A logger's level."""

    level: str = Field(description="OFF, FATAL, ERROR, WARN, INFO, DEBUG or TRACE.")
    last_modified: int | None = Field(description="When it was set by this API (ms since the epoch).")


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
    """A key's value and what is wrong with it."""

    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(BaseModel):
    """A key: definition and value."""

    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(BaseModel):
    """A configuration, key by key."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class CreateConnector(BaseModel):
    """A connector to be created."""

    name: str | None = Field(None, examples=["users"])
    config: Values = Field(description="Values are strings; numbers and booleans are taken as their text.")
    initial_state: State | None = Field(None, description="RUNNING, PAUSED or STOPPED.")


class OffsetsPatch(BaseModel):
    """Where logs shall end. Looked at entry by entry, so that errors are Connect's."""

    offsets: list[dict[str, Any]] | None = Field(
        None,
        examples=[[{"partition": {"kafka_topic": "users", "kafka_partition": 0}, "offset": {"kafka_offset": 42}}]],
    )


class LevelRequest(BaseModel):
    """A level to be set."""

    level: str = Field(examples=["DEBUG"], description="OFF, FATAL, ERROR, WARN, INFO, DEBUG or TRACE.")
