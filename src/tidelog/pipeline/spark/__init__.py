"""Spark itself: the JVM, the session, and errors that come back out of it."""
