"""The mesh daemon: takes sends over IPC into a durable outbox and delivers them to a broker.

It imports `tidelog.base` and the pure modules of `tidelog.mesh`; no command line, no web server.
"""
