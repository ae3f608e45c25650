"""What the owner of the log decides about sends, leases and members."""
