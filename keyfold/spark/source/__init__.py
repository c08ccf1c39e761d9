"""The data source `keyfold` for batches and streams, with Spark 4 and newer."""
