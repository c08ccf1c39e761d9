"""Reading a log back: in order, as latest state, to verify it, and to bring back a lost manifest."""
