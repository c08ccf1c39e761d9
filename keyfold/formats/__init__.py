"""Keys and values as what they stand for: text, JSON, Avro; in Python, and as columns of Arrow.

    Format          bytes, string, json, avro: the table of formats        keyfold.formats.format, handlers
    Decoder         one record's key or value, as Python values            keyfold.formats.decoder
    SchemaArchive   the writer schemas beside the log                      keyfold.formats.schema_archive
    Column          many keys or values as one Arrow array of one type     keyfold.formats.columns

A key or value that is not of its format is a `FormatMismatch`; the reader of the log adds the record's place.

format, handlers, errors                the table; what each format makes of bytes; bytes of another format
values, decoder                         one by one
columns, column_type, column_width      many at once: arrays, their types, and the memory that they take
confluent_framing, framed_columns       the schema id that Confluent's serializers write
schema_archive, schema_bounds           writer schemas beside the log, and limits for them
avro_*, arrow_types, logical_types      Avro: schemas, resolution, decoding by value and by vector
json_type, json_values, connect_json    JSON: its type, values of a type, Connect's envelope
"""
