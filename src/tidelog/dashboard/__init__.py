"""The dashboard: what the log, its surfaces and its daemons are doing, in a browser.

It only looks. What it changes, it changes through somebody else's door: a requeue or a drop is
asked of the daemon that owns the outbox.
"""
