"""Watching a server from outside: what `/metrics` says, and what is made of it.

Nothing here knows the server's modules: everything is read from what it exports, as Prometheus
reads it.
"""
