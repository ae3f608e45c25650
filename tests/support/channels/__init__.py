"""Clients, servers and bodies of the channels surface, for tests."""
