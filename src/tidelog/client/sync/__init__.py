"""The client of sync."""
