"""Committers and writers on real stores, for the tests of the log and of the store."""
