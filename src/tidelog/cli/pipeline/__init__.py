"""`tidelog pipeline`."""
