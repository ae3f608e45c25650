"""Kinds of settings, how settings are read, and the limits that no surface owns."""
