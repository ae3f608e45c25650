"""What the tests of the daemon share."""
