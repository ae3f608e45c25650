"""The mesh surface: idempotent sends from daemons to an authoritative broker on the log.

`fingerprint`, `identity`, `wire`, `negotiation` and `policy` are pure and shared with the daemon
and the clients; everything else here is the broker.
"""
