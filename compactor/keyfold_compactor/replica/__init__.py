"""The replica: a log of its own in another bucket that takes each newest version of the source, in full or not at all."""
