"""What the owner of the log does: caching states, keeping the model version, verifying rows."""
