"""Converters: they check that a record is what its readers will take it for. The log keeps the original bytes."""
