"""Public helpers for tests of tidelog and of applications on it."""
