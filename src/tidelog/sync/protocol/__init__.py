"""Pure and shared with clients: the wire, sessions, partitions, profiles and the tree."""
