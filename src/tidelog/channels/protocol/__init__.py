"""Pure and shared with clients: the wire, a connection's session, names, and how versions fold."""
