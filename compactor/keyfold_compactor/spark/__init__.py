"""Execution on Spark.

keeper, session           start Spark, check it, replace it
jvm_output                what Spark's JVM prints, without the noise of its start
versions                  supported versions of Spark
executor                  stages in the driver
worker_daemon             the process from which Spark forks Python workers
tasks, large_map_tasks    the code that runs in tasks
code_zip                  keyfold's code as a zip for executors and spark-submit
"""
