"""The object store: a small protocol, its implementations and its wrappers."""
