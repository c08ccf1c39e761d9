"""The object store as keyfold needs it: a small protocol, its implementations and its wrappers."""
