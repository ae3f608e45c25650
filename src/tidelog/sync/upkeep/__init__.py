"""The owner's half of sync: answering fronts, caching states, keeping the model version."""
