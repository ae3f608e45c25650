"""Logs, lakes and processes for the tests of the pipeline."""
