"""The search index over visible messages: building it, and reading it without Spark."""
