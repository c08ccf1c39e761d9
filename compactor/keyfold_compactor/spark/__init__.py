"""Execution on Spark.

keeper, session         start Spark, check it, replace it
versions                supported versions of Spark
executor, tasks, map    stages in the driver, and the code that runs in tasks
code_zip                keyfold's code as a zip for executors and spark-submit
"""
