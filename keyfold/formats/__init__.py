"""Keys and values as what they stand for: text, JSON, Avro; in Python, and as columns of Arrow.

    Format          bytes, string, json, avro
    Decoder         one record's key or value, as Python values            keyfold.formats.decoder
    SchemaArchive   the writer schemas beside the log                      keyfold.formats.schema_archive
    Column          many keys or values as one Arrow array of one type     keyfold.formats.columns

A key or value that is not of its format is a `FormatMismatch`; who reads the log says where it is.
"""
