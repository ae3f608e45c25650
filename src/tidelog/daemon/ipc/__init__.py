"""How programs of this machine talk to the daemon: HTTP on a Unix socket or a loopback port."""
