"""Connections that we open, and the frames of those that we serve."""
