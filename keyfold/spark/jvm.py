"""The session's JVM: whether it can be seen, and which classes and file systems it has.

A session of Spark Connect does not show its JVM, and its client may be without py4j: then nothing is known of it.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

try:
    from py4j.protocol import Py4JError
except ImportError:  # the client of Spark Connect by itself
    Py4JError = PySparkException

SPARK_ERRORS: Final[tuple[type[BaseException], ...]] = (PySparkException, Py4JError)
"""What Spark's own failures are in Python."""


def jvm_of(spark: SparkSession) -> Any | None:
    """The session's JVM, or None where it is out of sight."""
    return getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the JVM has a class, jars that were added to the session included."""
    if jvm_of(spark) is None:
        return False
    try:
        spark._jsparkSession.sharedState().jarClassLoader().loadClass(name)  # noqa: SLF001 - there is no public way
    except SPARK_ERRORS:
        return False
    return True


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """Whether Hadoop has a file system for a scheme, by the session's configuration."""
    jvm = jvm_of(spark)
    if jvm is None:
        return False
    try:
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no public way
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except SPARK_ERRORS:
        return False
    return True
