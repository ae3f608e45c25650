"""Servers of several processes."""
