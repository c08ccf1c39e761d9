"""Keys and values as what they stand for: text, JSON, Avro; in Python, and as columns of Arrow.

    Format          bytes, string, json, avro
    Decoder         one record's key or value, as Python values            keyfold.typed.decoder
    KeptSchemas     the writer schemas beside the log                      keyfold.typed.kept
    Column          many keys or values as one Arrow array of one type     keyfold.typed.columns

A key or value that is not of its format is a `Misfit`; who reads the log says where it is.
"""
