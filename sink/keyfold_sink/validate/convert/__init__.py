"""Converters, which validate that records have the format that readers expect. The log keeps the original bytes.

api                 the interface of record validation
converter_checks    the checks of a task, from its options
columns             checks of text and numbers
json_check          JSON, and Connect's envelope
connect_schema      Connect's schemas, as checks of a payload
avro_check          Avro with schema ids
avro_layout         compile an Avro schema into a check of bytes
avro_schema         names and references in Avro schemas
schemas             schemas by id: known, requested or refused
registry_api, registry      the interface of a Schema Registry, and its client
"""
