"""The data source `keyfold` for batches and streams, with Spark 4 and newer.

data_source                 the classes that Spark calls
options, columns, filters   options of a read; its columns; filters that Spark pushes down
topic, plan                 manifests of a topic; segments cut into tasks
batch, stream, offsets      which offsets a batch reads; offsets and limits of a stream
admission, resume           how much a stream admits; whether it may go on in a newer version
read                        what a task does
"""
