"""What the nodes of one log know of each other."""
