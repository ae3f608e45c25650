"""The mesh surface: idempotent sends from daemons to an authoritative broker on the log.

`protocol` is pure and shared with the daemon and the clients. The rest is the broker: `decide` has
its pure decisions, `upkeep` what it does by itself, and `front` what serves daemons.
"""
