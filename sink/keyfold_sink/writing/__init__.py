"""From records to committed segments: batches, the budget, the lanes that wait for the store."""
