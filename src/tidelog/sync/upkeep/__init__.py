"""What the owner of the log does by itself: verifying the rows of sync."""
