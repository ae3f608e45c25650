"""Spark itself: the JVM, the session, frames of rows, and errors that come back out of it."""
