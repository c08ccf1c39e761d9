"""Copying between the buckets.

jobs             copy jobs and their results, as values
transfer         schedules the jobs of many rounds over shared threads
copy_object      copies one object
schemas          copies the archived schemas that records name
memory_budget    limits the memory of all copies
"""
