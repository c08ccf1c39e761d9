"""Readers of a log: in order, as latest state, for verification, and for the repair of a lost manifest."""
