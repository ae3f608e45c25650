"""tidelog: a realtime backend on one durable, ordered, idempotent log."""

__version__ = "0.1.0.dev0"
