"""Scripts that the daemon runs when something happens."""
