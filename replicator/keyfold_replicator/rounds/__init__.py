"""Rounds: bring replicas up to date, one partition at a time.

plan                      decides which objects a round copies
round                     one round of one partition
claim, holds              the claim at the replica, and the held version at the source
change_detector           whether anything has changed, by ETags
gc, gc_schedule           garbage collection at the replica, and when it is due
slots                     limits the rounds that use the stores at once
partition_rounds          one partition between its rounds
state_table               the states of all partitions
runner                    all partitions of a replica
service                   all replicas of a source
"""
