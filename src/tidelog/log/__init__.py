"""The one path from a decision to a durable, ordered, deduplicated entry."""
