"""What the owner of the log does by itself: ends streams, erases, revokes, prunes, verifies."""
