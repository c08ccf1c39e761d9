"""The story that `keyfold demo` tells, on top of the sink and the compactor, and the local servers that it needs."""
