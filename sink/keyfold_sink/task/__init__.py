"""One task: the loop that reads, obeys, writes and reports."""
