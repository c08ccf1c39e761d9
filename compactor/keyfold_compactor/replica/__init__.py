"""The replica: a log of its own in another bucket that takes newest versions of the source, in full or not at all."""
