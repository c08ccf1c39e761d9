"""Stores around a store.

base           delegates every call
counting       counts calls and bytes
faults         fails as it is told to
observation    reports each call
"""
