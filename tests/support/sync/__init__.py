"""What the tests of sync share."""
