"""The sink's configuration: one table of options, the keys of other sinks, and all checks without a connection.

options, option_groups, option_kafka                        the table of options
aliases, foreign_keys                                       translate or refuse the keys of other sinks
examine                                                     list all mistakes of a configuration
connect_definitions                                         the options for Connect's user interfaces
client_settings, client_checks, client_construction_check       check the keys that pass through to the Kafka clients
converter_settings, registry_settings                       converters and the registry's client, with their settings
listeners                                                   the addresses of the REST API; whether a token is required
rolling                                                     the limits of a segment, and why it is finished
memory_plan                                                 divide `buffer.memory`
"""
