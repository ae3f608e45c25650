"""What stands between a client and a server in tests, and what checks what is said."""
