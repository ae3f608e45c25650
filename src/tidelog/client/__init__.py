"""Python clients of tidelog."""
