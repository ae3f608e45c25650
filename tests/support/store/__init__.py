"""Stores that tests fill, damage, copy and move."""
