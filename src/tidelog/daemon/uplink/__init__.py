"""The connection to the broker, and what is asked of the broker beside it."""
