"""Clients of channels."""
