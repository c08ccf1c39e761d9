"""Promotion: make a replica the source, and the old source its replica.

steps         the steps for each partition
last_round    the last rounds before the switch
"""
